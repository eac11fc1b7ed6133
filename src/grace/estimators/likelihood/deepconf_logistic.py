"""The least sure window (`deepconf`), through a logistic regression on validation answers."""

from __future__ import annotations

from dataclasses import dataclass

from grace.engines import Engine
from grace.estimators import Fitted, Splits
from grace.estimators.likelihood.deepconf import DeepConf
from grace.estimators.recalibrated import logistic


@dataclass(frozen=True, slots=True)
class DeepConfLogistic(DeepConf):
    """sigmoid(a * score + b), the score a mean log-probability, fitted by log loss."""

    def fit(self, splits: Splits, engine: Engine, seed: int) -> Fitted:
        """Fit slope and offset on validation answers."""
        return logistic(self.score, splits)


ESTIMATOR = DeepConfLogistic
