"""The paper's linear probe on hidden states: scores by grouped k-fold cross-validation.

Ridge regression in closed form with an unpenalised bias, min mean (y - w.x - b)^2 + lambda |w|^2,
on features standardised with the mean and spread of the training rows, in float64.

Shapes: N rows, D features, L lambdas.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from grace.probe.rows import Array, Probe, assign_folds, check_several, checked, spread

__all__ = ["Probe", "assign_folds", "kfold_scores"]

LAMBDAS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2)
INNER = 3  # folds of the training rows on which a lambda is chosen


def kfold_scores(
    features_ND: Array,
    labels_N: Array,
    groups_N: Sequence[Hashable],
    *,
    folds: int = 10,
    lambdas: Sequence[float] = LAMBDAS,
    blocks: Sequence[int] = (),
    seed: int = 0,
) -> Array:
    """Score every row (N,) with a probe that has seen neither the row nor its group.

    Of several `lambdas`, ridge penalties per training row, each fold chooses its own on `INNER`
    folds of its training set; `blocks` are the sizes of consecutive parts of the features, which
    then weigh the same in total. The scores are not calibrated. Source: arXiv 2509.09438 section
    3.2.2.
    """
    features_ND, label_N = checked(features_ND, labels_N)
    check_several(groups_N)
    fold_N = assign_folds(groups_N, folds, seed)
    scores_N = np.empty(len(label_N))
    for fold in range(fold_N.max() + 1):
        held_N = fold_N == fold
        probe = _choose(features_ND, label_N, fold_N, (fold,), lambdas, blocks)
        scores_N[held_N] = probe.predict(features_ND[held_N])
    return scores_N


def _choose(
    features_ND: Array,
    label_N: Array,
    fold_N: Array,
    outer: tuple[int, ...],
    lambdas: Sequence[float],
    blocks: Sequence[int],
) -> Probe:
    """Fit on the rows outside the folds `outer`; inner folds of those rows choose lambda."""
    folds = int(fold_N.max()) + 1
    if folds - len(outer) < 2:
        lambdas = [max(lambdas)]
    if len(lambdas) > 1:
        error_L = np.zeros(len(lambdas))
        for fold in _inner_folds(folds, outer):
            train_N, held_N = ~np.isin(fold_N, (*outer, fold)), fold_N == fold
            probes = _ridge(features_ND[train_N], label_N[train_N], lambdas, blocks)
            score_LN = np.stack([probe.predict(features_ND[held_N]) for probe in probes])
            score_LN = score_LN.clip(0, 1)  # as they are used; one odd row would decide otherwise
            error_L += np.square(score_LN - label_N[held_N]).sum(axis=1)
        lambdas = [lambdas[int(np.argmin(error_L))]]
    train_N = ~np.isin(fold_N, outer)
    return _ridge(features_ND[train_N], label_N[train_N], lambdas, blocks)[0]


def _inner_folds(folds: int, outer: tuple[int, ...]) -> list[int]:
    rest = [fold for fold in range(folds) if fold not in outer]
    start = (outer[0] if outer else 0) % len(rest)
    return (rest[start:] + rest[:start])[: min(INNER, len(rest) - 1)]


def _ridge(
    features_ND: Array, label_N: Array, lambdas: Sequence[float], blocks: Sequence[int]
) -> list[Probe]:
    """Fit one probe per lambda, from whichever Gram matrix is smaller."""
    count, width = features_ND.shape
    mean_D, bias = features_ND.mean(axis=0), float(label_N.mean())
    scale_D = spread(features_ND)
    if len(blocks) > 1:
        scale_D *= np.concatenate([np.full(size, size**0.5) for size in blocks])
    x_ND, y_N = (features_ND - mean_D) / scale_D, label_N - bias
    wide = width > count
    gram, target = (x_ND @ x_ND.T, y_N) if wide else (x_ND.T @ x_ND, x_ND.T @ y_N)
    weights = (_solve(gram, lam * count, target) for lam in lambdas)
    slopes = (one @ x_ND if wide else one for one in weights)
    return [Probe(one_D, bias, mean_D, scale_D) for one_D in slopes]


def _solve(gram: Array, penalty: float, target: Array) -> Array:
    from scipy import linalg

    shifted = gram.copy()
    shifted[np.diag_indices_from(shifted)] += penalty
    return np.asarray(linalg.solve(shifted, target, assume_a="pos", overwrite_a=True))
