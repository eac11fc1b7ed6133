"""P(True) with prompt and shots chosen on validation answers, and calibrated there.

Cost: one more request per response, as for P(True); the choice takes one per prompt and number of
shots for each of at most 200 validation answers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from grace.calibration import CLIP
from grace.engines import Engine
from grace.estimators import Answers, Fitted, Splits
from grace.estimators.prompted.p_true import TEMPLATES, PTrue
from grace.estimators.prompted.tuning import candidates, tuned


@dataclass(frozen=True, slots=True)
class PTrueTuned:
    """sigmoid(a * log-odds of P(True) + b), with the best template and 0, 4 or 8 shots."""

    answers: ClassVar[Answers] = "base"

    def fit(self, splits: Splits, engine: Engine, seed: int) -> Fitted:
        """Choose template and shots, then fit slope and offset.

        Raises:
            ModelError: the model can take none of the prompts.
        """
        choices = [PTrue(template, shots) for template, shots in candidates(splits, TEMPLATES)]
        return tuned(choices, log_odds, splits, engine, seed)


def log_odds(value: float) -> float:
    """Return the log-odds of a probability, finite also for 0 and 1."""
    kept = min(max(value, CLIP), 1 - CLIP)
    return math.log(kept / (1 - kept))


ESTIMATOR = PTrueTuned
