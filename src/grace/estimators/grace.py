"""GrACE on its own answers and on the backbone's, and its token probabilities alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np

from grace.engines import Engine
from grace.estimators import Answers, Fitted, Rows, Samples, Splits, ended_rows, of_ended
from grace.evidence import FEATURES, features
from grace.methods.grace.fit import fit_evidence
from grace.records import Response


@dataclass(frozen=True, slots=True)
class Grace:
    """GrACE: the confidence of the trained model in its own answers, read while it answers.

    Source: arXiv 2509.09438 eq. 5.
    """

    answers: ClassVar[Answers] = "tuned"

    def fit(self, splits: Splits, engine: Engine, seed: int) -> Fitted:
        """Nothing is fitted: the adapter was trained before."""
        return Fitted(lambda samples: [response.confidence for response in samples.responses])


@dataclass(frozen=True, slots=True)
class GraceBase:
    """GrACE on the backbone's answers, the text that every other method rates.

    The paper's LoRA changes answers a little, and `grace` rates the tuned model's own. Cost: one
    forward pass over prompt and response for each response.
    """

    asks: ClassVar[Answers] = "tuned"

    def fit(self, splits: Splits, engine: Engine, seed: int) -> Fitted:
        """Nothing is fitted: the adapter was trained before."""

        def rate(samples: Samples, rows: Rows) -> list[float]:
            return engine.confidences(*samples.token_ids(rows))

        return of_ended(rate)


@dataclass(frozen=True, slots=True)
class EvidenceAlone:
    """GrACE's evidence alone: logistic regression on eight features of the token log-probabilities.

    sigmoid(bias + w . (phi - center)), fitted on the training responses. Beside `grace` it shows
    how much of c comes from the evidence.
    """

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
    return features(response.logprobs, cast(float, response.end_logprob))


ESTIMATORS = {
    "grace": Grace,
    "grace_base": GraceBase,
    "evidence": EvidenceAlone,
}
