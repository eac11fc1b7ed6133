"""ActCab: a linear layer and a sigmoid on the mean hidden state, trained on soft labels.

Probes on k folds score the training responses out of fold. A response's soft label is the accuracy
of the bin of its score, and one more probe is trained on the soft labels.
Cost: one forward pass over prompt and response for each response, for its hidden states.
Source: ActCab (arXiv 2406.13230), `src/train_ICL_K_fold_seq_avg.py` of its published code.

Shapes: N responses, D features, C candidates.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from grace.config import setting
from grace.engines import Engine
from grace.errors import DataError
from grace.estimators import Fitted, Rows, Samples, Splits, ended_rows, of_ended
from grace.metrics import brier
from grace.metrics.kernels import bin_index
from grace.probe.rows import Array, assign_folds, check_several, labels_of, sigmoid, spread

GRID = tuple(itertools.product((1e-5, 1e-4, 1e-3, 1e-2), (3, 10, 30, 100)))
"""The candidates: learning rates and numbers of epochs."""


class Scale(NamedTuple):
    """Standardises features by the training rows, and appends a constant 1 for the bias."""

    mean_D: Array
    scale_D: Array

    def __call__(self, states_ND: Array) -> Array:
        """Scale rows of any split."""
        rows_ND = ((states_ND - self.mean_D) / self.scale_D).astype(np.float32)
        return np.pad(rows_ND, ((0, 0), (0, 1)), constant_values=1.0)


@dataclass(frozen=True, slots=True)
class ActCab:
    """A sigmoid probe on the mean last-layer hidden state, with k-fold soft labels.

    The published optimisation leaves most values near 0.5 on a few thousand rows, so learning rate
    and epochs are chosen from `GRID` on validation Brier, for the probes of the folds as well.
    Features are standardised, there is a bias, and folds are shuffled, which the code does not do.
    """

    folds: int = setting(10, "folds for the soft labels", low=2)
    bins: int = setting(50, "equal-width bins of the soft labels", low=1)

    def fit(self, splits: Splits, engine: Engine, seed: int) -> Fitted:
        """Train the probes of the folds, then one on the soft labels."""
        train = splits.train
        label_N, fold_N = labels_of(train.correct), self._folds(train, seed)
        states_ND = _states(train, range(len(label_N)), engine)
        scale = Scale(states_ND.mean(axis=0, dtype=np.float64), spread(states_ND))
        rows_ND = scale(states_ND)
        soft_NC = self._soft_labels(rows_ND, label_N, fold_N, seed)
        weights_CD = _train(rows_ND, soft_NC, seed)
        weights_D = weights_CD[_best(splits.validation, engine, scale, weights_CD)]

        def rate(samples: Samples, rows: Rows) -> list[float]:
            return list(_rate(scale(_states(samples, rows, engine)), weights_D).tolist())

        return of_ended(rate, len(weights_D))

    def _folds(self, train: Samples, seed: int) -> Array:
        questions = [question.cluster for question in train.questions]
        check_several(questions)
        return assign_folds(questions, self.folds, seed)

    def _soft_labels(self, rows_ND: Array, label_N: Array, fold_N: Array, seed: int) -> Array:
        """Return the accuracy of each row's bin of out-of-fold scores, per candidate, (N, C)."""
        labels_NC = np.repeat(label_N[:, None], len(GRID), axis=1)
        scores_NC = np.empty_like(labels_NC)
        for fold in np.unique(fold_N):
            held_N = fold_N == fold
            weights_CD = _train(rows_ND[~held_N], labels_NC[~held_N], seed)
            scores_NC[held_N] = _rate(rows_ND[held_N], weights_CD.T)
        return np.stack([bin_accuracy(s_N, label_N, self.bins) for s_N in scores_NC.T], axis=1)


def _train(rows_ND: Array, labels_NC: Array, seed: int) -> Array:
    return train_probes(rows_ND, labels_NC, *zip(*GRID, strict=True), seed=seed)


def train_probes(
    features_ND: Array,
    labels_NC: Array,
    learning_rates: Sequence[float],
    epochs: Sequence[int],
    *,
    batch_size: int = 128,
    weight_decay: float = 0.01,
    seed: int = 0,
) -> Array:
    """Train C probes, sigmoids without bias, side by side; return their weights (C, D)."""
    import torch

    count, width = features_ND.shape
    weights_CD = np.zeros((len(epochs), width), features_ND.dtype)
    rows = list(torch.from_numpy(weights_CD))  # views: a step changes the matrix
    groups = [{"params": [row], "lr": rate} for row, rate in zip(rows, learning_rates, strict=True)]
    optimizer = torch.optim.AdamW(groups, weight_decay=weight_decay, fused=True)
    rng = np.random.default_rng(seed)
    for epoch in range(max(epochs)):
        left = [c for c, last in enumerate(epochs) if epoch < last]
        optimizer.zero_grad()  # a probe without a slope is done: the optimizer leaves it alone
        order_N = rng.permutation(count)
        for first in range(0, count, batch_size):
            rows_B = order_N[first : first + batch_size]
            batch_BD, label_BC = features_ND[rows_B], labels_NC[rows_B[:, None], left]
            p_BC = sigmoid(batch_BD @ weights_CD[left].T)
            slope_BC = (2 / len(rows_B)) * (p_BC - label_BC) * p_BC * (1 - p_BC)
            slope_CD = torch.from_numpy(slope_BC.astype(batch_BD.dtype).T @ batch_BD)
            for c, slope_D in zip(left, slope_CD, strict=True):
                rows[c].grad = slope_D
            optimizer.step()
    return weights_CD


def bin_accuracy(scores_N: Array, label_N: Array, bins: int) -> Array:
    """Return, for every row, the accuracy of its equal-width bin of scores in [0, 1]."""
    bin_N = bin_index(scores_N, bins)
    right_M = np.bincount(bin_N, weights=label_N, minlength=bins)
    return (right_M / np.maximum(np.bincount(bin_N, minlength=bins), 1))[bin_N]


def _states(samples: Samples, rows: Rows, engine: Engine) -> Array:
    return engine.features(*samples.token_ids(rows)).mean_ND


def _rate(rows_ND: Array, weights: Array) -> Array:
    """Return the scores of one probe (D,) or of several (D, C), in float64."""
    return sigmoid((rows_ND @ weights).astype(np.float64))


def _best(validation: Samples, engine: Engine, scale: Scale, weights_CD: Array) -> int:
    """Return the candidate with the least Brier score on the validation responses that ended."""
    rows = ended_rows(validation)
    if not rows:
        raise DataError(
            "no validation response ended, so ActCab has nothing to tune on; raise "
            "sample.max_new_tokens, or leave it out of report.estimators"
        )
    correct_N = np.array([validation.correct[row] for row in rows])
    p_NC = _rate(scale(_states(validation, rows, engine)), weights_CD.T)
    return int(np.argmin([brier(p_N, correct_N) for p_N in p_NC.T]))


ESTIMATOR = ActCab
