"""P(True) at its best: prompt and shots chosen on validation answers, then calibrated there.

Cost: one more request per response, as P(True); choosing takes one per prompt and number of shots
for each of at most 200 validation answers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from grace.calibration import CLIP
from grace.engines import Engine
from grace.estimators import Answers, Fitted, Known
from grace.estimators.asked.p_true import TEMPLATES, PTrue
from grace.estimators.asked.tuning import candidates, tuned


@dataclass(frozen=True, slots=True)
class PTrueTuned:
    """sigmoid(a * log-odds of P(True) + b), with the template and 0, 4 or 8 shots that do best."""

    answers: ClassVar[Answers] = "base"

    def fit(self, known: Known, engine: Engine, seed: int) -> Fitted:
        """Choose template and shots, then fit slope and offset.

        Raises:
            ModelError: the model can take none of the prompts.
        """
        ways: Any = candidates(known, list(TEMPLATES))
        choices = [PTrue(template=template, shots=count) for template, count in ways]
        return tuned(choices, log_odds, known, engine, seed)


def log_odds(value: float) -> float:
    """Return the log-odds of a probability, finite for 0 and 1, too."""
    kept = min(max(value, CLIP), 1 - CLIP)
    return math.log(kept / (1 - kept))


ESTIMATOR = PTrueTuned
