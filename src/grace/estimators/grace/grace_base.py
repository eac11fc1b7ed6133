"""GrACE on the backbone's answers, the text that every other method rates.

The paper's LoRA changes answers a little, and `grace` rates the tuned model's own. Cost: one
forward pass over prompt and response for each response.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from grace.engines import Engine
from grace.estimators import Answers, Fitted, Rows, Samples, Splits, of_ended


@dataclass(frozen=True, slots=True)
class GraceBase:
    """The tuned model's confidence in the answers of the backbone."""

    answers: ClassVar[Answers] = "base"
    asks: ClassVar[Answers] = "tuned"

    def fit(self, splits: Splits, engine: Engine, seed: int) -> Fitted:
        """Nothing is fitted: the adapter was trained before."""

        def rate(samples: Samples, rows: Rows) -> list[float]:
            return engine.confidences(*samples.token_ids(rows))

        return of_ended(rate)


ESTIMATOR = GraceBase
