"""Platt scaling: sigmoid(a * likelihood + b), fitted on validation answers.

Source: Platt 1999, as compared in arXiv 2509.09438 Appendix A (mean squared error).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from grace.engines import Engine
from grace.estimators import Answers, Fitted, Splits
from grace.estimators.likelihood.likelihood import Likelihood
from grace.estimators.recalibrated import recalibrate


@dataclass(frozen=True, slots=True)
class PlattScaling:
    """Sequence likelihood, mapped by two parameters that are fitted on validation answers."""

    answers: ClassVar[Answers] = "base"

    def fit(self, splits: Splits, engine: Engine, seed: int) -> Fitted:
        """Fit slope and offset by least squares."""
        return recalibrate(Likelihood(), "platt").fit(splits, engine, seed)


ESTIMATOR = PlattScaling
