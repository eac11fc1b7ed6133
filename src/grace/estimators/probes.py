"""Logistic regression of correctness on hidden states, fitted on training responses."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from grace import evidence
from grace.config import setting
from grace.engines import LAST, Engine
from grace.estimators import Fitted, Rows, Samples, Splits, ended_rows, of_ended
from grace.methods.grace.fit import choose_layer, placed
from grace.probe.logistic import FIRST, fit_logistic
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
    with_tokens: ClassVar[bool] = False

    def fit(self, splits: Splits, engine: Engine, seed: int) -> Fitted:
        """Choose the layer, and fit weights and bias on the training responses."""
        train, rows = splits.train, ended_rows(splits.train)
        label_N, groups = known(train, rows)

        def read(samples: Samples, rows: Rows, layer: int) -> list[Array]:
            states = placed(engine.features(*samples.token_ids(rows), layer))
            if not self.with_tokens:
                return states
            said = (samples.responses[row] for row in rows)
            return [
                *states,
                np.stack([likelihood_features(r.logprobs, r.end_logprob) for r in said]),
            ]

        chosen = choose_layer(
            lambda layer: read(train, rows, layer),
            self.layers,
            label_N,
            groups,
            seed=seed,
            nested=False,
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


# --- the features of the tokens' log-probabilities

LIKELIHOOD_FEATURES = (
    *evidence.FEATURES,
    "mean_prob",
    "first_logprob",
    "last_logprob",
    "end_logprob",
    "end_prob",
    "cut",
)


def likelihood_features(logprobs: Sequence[float], end_logprob: float | None) -> Array:
    """Return the likelihood features of one response, float32 of shape (14,), always finite.

    Names and order are `LIKELIHOOD_FEATURES`: the features of `grace.evidence` and six more.
    Log-probabilities are floored at `evidence.LOWEST`. An empty response counts as one token of
    probability 1. `cut` is 1 for a response without an end, whose log-probability is the floor.
    """
    cut = end_logprob is None
    end = evidence.LOWEST if end_logprob is None else max(evidence.LOWEST, end_logprob)
    log_T = np.nan_to_num(np.asarray(logprobs or [0.0], dtype=np.float64), nan=evidence.LOWEST)
    log_T = np.clip(log_T, evidence.LOWEST, 0.0)
    more = (np.exp(log_T).mean(), log_T[0], log_T[-1], end, math.exp(min(end, 0.0)), float(cut))
    return np.asarray((*evidence.features(logprobs, end), *more), dtype=np.float32)
