"""GrACE: the confidence of the trained model in its own answers, read while it answers.

Source: arXiv 2509.09438 eq. 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from grace.engines import Engine
from grace.estimators import Answers, Fitted, Splits


@dataclass(frozen=True, slots=True)
class Grace:
    """The tuned model's confidence in its own answers, which was recorded with the response."""

    answers: ClassVar[Answers] = "tuned"

    def fit(self, splits: Splits, engine: Engine, seed: int) -> Fitted:
        """Nothing is fitted: the adapter was trained before."""
        return Fitted(lambda samples: [response.confidence for response in samples.responses])


ESTIMATOR = Grace
