"""Logistic regression of correctness on hidden states, fitted on training responses."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from grace.config import setting
from grace.engines import LAST, Engine
from grace.estimators import Answers, Fitted, Rows, Samples, Splits, ended_rows, of_ended
from grace.methods.grace.fit import choose_layer, placed
from grace.probe.features import feature_parts
from grace.probe.logistic import fit_logistic
from grace.probe.penalties import FIRST
from grace.probe.rows import Array, check_several, labels_of, sigmoid

Read = Callable[[Samples, Rows], Sequence[Array]]


def known(train: Samples, rows: Rows) -> tuple[Array, list[str]]:
    """Return the grades of some training responses (N,), and their questions or groups."""
    label_N: Array = labels_of(train.correct)[rows]
    return label_N, [train.questions[row].cluster for row in rows]


def fit_on_states(read: Read, splits: Splits, seed: int, first: float = FIRST) -> Fitted:
    """Fit on states, each (rows, D), with a penalty each, chosen on folds grouped by question."""
    rows = ended_rows(splits.train)
    label_N, questions = known(splits.train, rows)
    check_several(questions)
    made = fit_logistic(read(splits.train, rows), label_N, questions, first=first, seed=seed)
    weights_W, limit = np.concatenate(made.weights), math.log(len(rows) + 1)

    def rate(samples: Samples, rows: Rows) -> list[float]:
        logit_N = np.concatenate(read(samples, rows), axis=1) @ weights_W + made.bias
        rated: list[float] = sigmoid(np.clip(logit_N, -limit, limit)).tolist()
        return rated

    return of_ended(rate, len(weights_W) + 1)


@dataclass(frozen=True, slots=True)
class StateProbe:
    """A probe: logistic regression on hidden states of the layer that rates held-out answers best.

    sigmoid(w . states + bias), with the states of the response's end, its prompt's and its mean.
    It has the states, the search for a layer, the penalties and the folds that the rows of GrACE
    have, but no log-probabilities. Read while generating it would cost nothing, as rows of the
    vocabulary do; here it takes one more forward pass over the backbone's prompt and response.
    """

    layers: tuple[int, ...] = setting(
        (LAST,),
        "0: the last hidden state; N: the MLP of block N; of several the best is taken; unless "
        "set, those among which grace chooses",
    )
    answers: ClassVar[Answers] = "base"
    with_tokens: ClassVar[bool] = False

    def fit(self, splits: Splits, engine: Engine, seed: int) -> Fitted:
        """Choose the layer, and fit weights and bias on the training responses."""
        train, rows = splits.train, ended_rows(splits.train)
        label_N, groups = known(train, rows)

        def read(samples: Samples, rows: Rows, layer: int) -> list[Array]:
            states = placed(engine.features(*samples.token_ids(rows), layer))
            if not self.with_tokens:
                return states
            responses = [samples.responses[row] for row in rows]
            return [*states, *feature_parts(("likelihood",), {}, responses)]

        chosen = choose_layer(
            lambda layer: read(train, rows, layer), self.layers, label_N, groups, seed=seed
        )
        return fit_on_states(
            lambda samples, rows: read(samples, rows, chosen.layer), splits, seed, chosen.first
        )


@dataclass(frozen=True, slots=True)
class TokenProbe(StateProbe):
    """The probe, with features of the log-probabilities of the tokens beside the hidden states.

    What GrACE reads, read in a second pass.
    """

    with_tokens: ClassVar[bool] = True


ESTIMATORS = {
    "probe": StateProbe,
    "probe_tokens": TokenProbe,
}
