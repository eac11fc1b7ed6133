"""P(True) with prompt and shots chosen on validation answers, and calibrated there.

Cost: one more request per response, as for P(True); the choice takes one per prompt and number of
shots for each of at most 200 validation answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from grace.calibration import log_odds
from grace.engines import Engine
from grace.estimators import Answers, Fitted, Splits
from grace.estimators.prompted.p_true import TEMPLATES, PTrue
from grace.estimators.prompted.tuning import candidates, tuned


@dataclass(frozen=True, slots=True)
class PTrueTuned:
    """sigmoid(a * log-odds of P(True) + b), with the best template and 0, 4 or 8 shots."""

    answers: ClassVar[Answers] = "base"

    def fit(self, splits: Splits, engine: Engine, seed: int) -> Fitted:
        """Choose template and shots, then fit slope and offset."""
        choices = [PTrue(template, shots) for template, shots in candidates(splits, TEMPLATES)]
        return tuned(choices, lambda p: float(log_odds(p)), splits, engine, seed)


ESTIMATOR = PTrueTuned
