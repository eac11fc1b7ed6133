"""The paper's linear probe on hidden states: scores by grouped k-fold cross-validation.

Ridge regression in closed form with an unpenalised bias, min mean (y - w.x - b)^2 + lambda |w|^2,
on features standardised with the mean and spread of the training rows, in float64.

Shapes: N rows, H held-out rows, D features, L lambdas.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from grace.errors import UserInputError
from grace.probe.rows import Array, assign_folds, check_several, spread

LAMBDAS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2)
INNER = 3  # folds of the training rows on which a lambda is chosen


def kfold_scores(
    features_ND: Array,
    labels_N: Array,
    groups_N: Sequence[Hashable],
    *,
    folds: int = 10,
    seed: int = 0,
) -> Array:
    """Score every row (N,), uncalibrated, by a fit without its group (paper section 3.2.2)."""
    features_ND, label_N = (np.asarray(each, dtype=np.float64) for each in (features_ND, labels_N))
    finite_N = np.isfinite(features_ND).all(axis=1)
    if not finite_N.all():
        raise UserInputError(
            f"probe features of row {int(np.argmin(finite_N))} are not finite; extract the "
            "features again in float32"
        )
    check_several(groups_N)
    fold_N = assign_folds(groups_N, folds, seed)
    scores_N = np.empty(len(label_N))
    for fold in range(fold_N.max() + 1):
        held_N = fold_N == fold
        lambdas = [_chosen(features_ND, label_N, fold_N, fold)]
        (scores_N[held_N],) = _scores(features_ND, label_N, ~held_N, held_N, lambdas)
    return scores_N


def _chosen(features_ND: Array, label_N: Array, fold_N: Array, outer: int) -> float:
    """Return the lambda that rates inner folds best, without the fold `outer`."""
    folds = int(fold_N.max()) + 1
    if folds < 3:
        return max(LAMBDAS)
    error_L = np.zeros(len(LAMBDAS))
    others = [(outer + 1 + step) % folds for step in range(folds - 1)]
    for fold in others[: min(INNER, folds - 2)]:
        train_N, held_N = ~np.isin(fold_N, (outer, fold)), fold_N == fold
        score_LH = _scores(features_ND, label_N, train_N, held_N, LAMBDAS)
        score_LH = score_LH.clip(0, 1)  # as they are used; one odd row would decide otherwise
        error_L += np.square(score_LH - label_N[held_N]).sum(axis=1)
    return LAMBDAS[int(np.argmin(error_L))]


def _scores(
    features_ND: Array, label_N: Array, train_N: Array, held_N: Array, lambdas: Sequence[float]
) -> Array:
    """Return the scores (L, H) of held-out rows by fits with whichever Gram matrix is smaller."""
    train_ND, label_N = features_ND[train_N], label_N[train_N]
    count, width = train_ND.shape
    mean_D, bias, scale_D = train_ND.mean(axis=0), float(label_N.mean()), spread(train_ND)
    x_ND, y_N = (train_ND - mean_D) / scale_D, label_N - bias
    wide = width > count
    gram, target = (x_ND @ x_ND.T, y_N) if wide else (x_ND.T @ x_ND, x_ND.T @ y_N)
    weights = (_solve(gram, penalty * count, target) for penalty in lambdas)
    slopes = (one @ x_ND if wide else one for one in weights)
    centred_HD = features_ND[held_N] - mean_D
    return np.stack([centred_HD @ (slope_D / scale_D) + bias for slope_D in slopes])


def _solve(gram: Array, penalty: float, target: Array) -> Array:
    from scipy import linalg

    shifted = gram.copy()
    shifted[np.diag_indices_from(shifted)] += penalty
    return np.asarray(linalg.solve(shifted, target, assume_a="pos", overwrite_a=True))
