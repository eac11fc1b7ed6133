"""Logistic regression of correctness on hidden states, fitted on training responses."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from grace.estimators import Fitted, Rows, Samples, Splits, ended_rows, of_ended
from grace.probe.logistic import fit_logistic
from grace.probe.penalties import FIRST
from grace.probe.rows import Array, check_several, labels_of, sigmoid

Read = Callable[[Samples, Rows], Sequence[Array]]


def known(train: Samples, rows: Rows) -> tuple[Array, list[str]]:
    """Return the grades of some training responses (N,), and their questions or groups."""
    label_N: Array = labels_of(train.correct)[rows]
    return label_N, [train.questions[row].cluster for row in rows]


def fit_on_states(read: Read, splits: Splits, seed: int, first: float = FIRST) -> Fitted:
    """Fit on states with a penalty each, chosen on folds grouped by question.

    Log-odds stay within +-log(n + 1) for n training responses, as those of GrACE.

    Args:
        read: returns the states of some rows of samples, each of shape (rows, D).
        splits: the training responses; those that were cut off are left out.
        seed: seed of the folds.
        first: the penalty with which the search starts.
    """
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
