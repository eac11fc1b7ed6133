"""The linear probe that makes the training targets, fitted on all training responses.

Cost: one forward pass over prompt and response for each response, for its hidden states.
Source: the probe of arXiv 2509.09438 section 3.2.2, used as an estimator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from grace.config import setting
from grace.engines import Engine
from grace.estimators import Answers, Fitted, Rows, Samples, Splits, of_ended
from grace.probe import fit_probe
from grace.probe.features import feature_parts
from grace.probe.rows import Array, labels_of

Part = Literal["mean", "last", "likelihood"]


@dataclass(frozen=True, slots=True)
class StateProbe:
    """A linear probe on hidden states (and likelihoods), clipped to [0, 1]."""

    features: tuple[Part, ...] = setting(
        ("mean", "last", "likelihood"), "inputs: mean and last hidden state, token likelihoods"
    )
    folds: int = setting(10, "folds, grouped by question, on which the ridge is chosen", low=2)

    answers: ClassVar[Answers] = "base"

    def fit(self, splits: Splits, engine: Engine, seed: int) -> Fitted:
        """Fit the ridge on the training responses, and choose its strength on folds of them."""
        train = splits.train
        parts = self._parts(train, range(len(train.responses)), engine)
        questions = [question.cluster for question in train.questions]
        probe = fit_probe(
            np.concatenate(parts, axis=1),
            labels_of(train.correct),
            questions,
            folds=self.folds,
            blocks=[part.shape[1] for part in parts],
            seed=seed,
        )

        def rate(samples: Samples, rows: Rows) -> list[float]:
            scores_N = probe.predict(np.concatenate(self._parts(samples, rows, engine), axis=1))
            return list(np.clip(scores_N, 0.0, 1.0).tolist())

        return of_ended(rate, len(probe.weights) + 1)

    def _parts(self, samples: Samples, rows: Rows, engine: Engine) -> list[Array]:
        """Return one block of features per part, each of shape (rows, width)."""
        responses = [samples.responses[row] for row in rows]
        states = {}
        if set(self.features) - {"likelihood"}:
            mean_ND, last_ND, _ = engine.features(*samples.token_ids(rows))
            states = {"mean": mean_ND, "last": last_ND}
        return feature_parts(self.features, states, responses)


ESTIMATOR = StateProbe
