"""GrACE's evidence alone: logistic regression on six numbers of the response's log-probabilities.

What c is before a step of training (`grace.evidence`). Beside `grace` it tells how much of c is
evidence and how much is what LoRA and the row of `<CNF>` learn.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from grace.estimators import Answers, Fitted, Known
from grace.estimators.ended import rate_ended
from grace.evidence import FEATURES, features, fit

if TYPE_CHECKING:
    from grace.engines import Engine


@dataclass(frozen=True, slots=True)
class EvidenceAlone:
    """sigmoid(bias + w . (phi - center)), fitted on the training responses."""

    answers: ClassVar[Answers] = "base"

    def fit(self, known: Known, engine: Engine, seed: int) -> Fitted:
        """Fit the weights and the bias."""
        train = known.train
        phi_NF = np.array([features(response.logprobs) for response in train.responses])
        evidence = fit(phi_NF, np.array(train.correct))

        def rate(logprobs: tuple[float, ...]) -> float:
            return 0.5 + 0.5 * math.tanh(evidence.of(logprobs) / 2)

        return Fitted(
            lambda samples: rate_ended(
                samples, lambda rows: [rate(samples.responses[row].logprobs) for row in rows]
            ),
            trained_parameters=1 + len(FEATURES),
        )


ESTIMATOR = EvidenceAlone
