"""Log-likelihood: logistic regression on the log-probability of the whole response.

The sum that sequence likelihood divides by the length, so a longer answer is less likely. Its two
parameters are fitted on validation answers by log loss; the cost is that of Platt scaling.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from grace.config import setting
from grace.engines import Engine
from grace.estimators import Answers, Fitted, Samples, Splits, Values
from grace.estimators.likelihood.likelihood import counted_logprobs
from grace.estimators.recalibrated import logistic


@dataclass(frozen=True, slots=True)
class LogLikelihood:
    """sigmoid(a * sum of log p + b), from the raw softmax at temperature 1."""

    with_end: bool = setting(True, "count the end token as one more token")

    answers: ClassVar[Answers] = "base"

    def fit(self, splits: Splits, engine: Engine, seed: int) -> Fitted:
        """Fit slope and offset on validation answers."""
        return logistic(self._score, splits)

    def _score(self, samples: Samples) -> Values:
        rows = [counted_logprobs(one, with_end=self.with_end) for one in samples.responses]
        return [math.fsum(row) if row else None for row in rows]


ESTIMATOR = LogLikelihood
