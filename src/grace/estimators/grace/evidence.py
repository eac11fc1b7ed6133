"""GrACE's evidence alone: logistic regression on seven features of the token log-probabilities.

Beside `grace` it shows how much of c comes from the evidence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np

from grace.engines import Engine
from grace.estimators import Answers, Fitted, Splits, ended_rows, of_ended
from grace.evidence import FEATURES, features
from grace.methods.grace.fit import fit_evidence
from grace.records import Response


@dataclass(frozen=True, slots=True)
class EvidenceAlone:
    """sigmoid(bias + w . (phi - center)), fitted on the training responses."""

    answers: ClassVar[Answers] = "base"

    def fit(self, splits: Splits, engine: Engine, seed: int) -> Fitted:
        """Fit the weights and the bias."""
        train = splits.train
        rows = ended_rows(train)
        phi_NF = np.array([_features(train.responses[i]) for i in rows])
        right_N = np.array([train.correct[i] for i in rows])
        evidence = fit_evidence(phi_NF, right_N, [train.questions[i].cluster for i in rows])

        def rate(response: Response) -> float:
            return evidence.confidence(0.0, evidence.shift_of(_features(response)))

        return of_ended(
            lambda samples, rows: [rate(samples.responses[row]) for row in rows],
            trained_parameters=1 + len(FEATURES),
        )


def _features(response: Response) -> tuple[float, ...]:
    """Return the features of a response that ended."""
    return features(response.logprobs, cast(float, response.end_logprob))


ESTIMATOR = EvidenceAlone
