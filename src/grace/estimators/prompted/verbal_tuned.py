"""Verbalised confidence with prompt and shots chosen on validation answers, and calibrated there.

Cost: one more request per response, as for Verbal; the choice takes one per prompt and number of
shots for each of at most 200 validation answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from grace.config import setting
from grace.engines import Engine
from grace.estimators import Answers, Fitted, Splits
from grace.estimators.prompted.tuning import candidates, tuned
from grace.estimators.prompted.verbal import PROMPTS, Verbal


@dataclass(frozen=True, slots=True)
class VerbalTuned:
    """sigmoid(a * stated confidence + b), with the best template and 0, 4 or 8 shots."""

    max_new_tokens: int = setting(20, "longest reply, in tokens", low=1)
    unparsed: Literal["none", "half"] = setting(
        "none", "for a reply without a number, as in verbal"
    )

    answers: ClassVar[Answers] = "base"

    def fit(self, splits: Splits, engine: Engine, seed: int) -> Fitted:
        """Choose template and shots, then fit slope and offset."""
        choices = [
            Verbal(template, self.max_new_tokens, self.unparsed, shots)
            for template, shots in candidates(splits, PROMPTS)
        ]
        return tuned(choices, float, splits, engine, seed)


ESTIMATOR = VerbalTuned
