"""Logistic regression of correctness on a hidden state, fitted on training responses."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from grace.estimators import Fitted, Rows, Samples, Splits, ended_rows, of_ended
from grace.evidence import sigmoid
from grace.grading import labels_of
from grace.probe.logistic import fit_logistic
from grace.probe.rows import Array

Read = Callable[[Samples, Rows], Sequence[Array]]


def fit_on_states(read: Read, splits: Splits, seed: int) -> Fitted:
    """Fit on the best of several states, chosen with its penalty on folds grouped by question.

    Confidences stay within [1 / (n + 2), 1 - 1 / (n + 2)] for n training responses.

    Args:
        read: returns several states of some rows of samples, each of shape (rows, D).
        splits: the training responses; those that were cut off are left out.
        seed: seed of the folds.

    Raises:
        DataError: all training responses are right, or all are wrong.
    """
    rows = ended_rows(splits.train)
    label_N = labels_of(splits.train.correct)[rows]
    questions = [splits.train.questions[row].id for row in rows]
    states = read(splits.train, rows)
    fits = [fit_logistic([state_ND], label_N, questions, seed=seed) for state_ND in states]
    best = min(range(len(fits)), key=lambda one: float(fits[one].losses.mean()))
    weights_D, bias, limit = fits[best].weights[0], fits[best].bias, math.log(len(rows) + 1)

    def rate(samples: Samples, rows: Rows) -> list[float]:
        logit_N = read(samples, rows)[best] @ weights_D + bias
        return [sigmoid(value) for value in np.clip(logit_N, -limit, limit).tolist()]

    return of_ended(rate, len(weights_D) + 1)
