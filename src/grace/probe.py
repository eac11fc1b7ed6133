"""Linear probe: grouped k-fold scores and a fitted estimator, in closed form.

Ridge with an unpenalised bias, `min mean (y - w.x - b)^2 + lambda |w|^2` on features
standardised with the training rows' own mean and spread. The Gram matrix of every fold is
computed once; a training set is the total minus the folds that are held out, so k folds cost one
pass over the data plus k small solves. Memory (primal): (k + 3) d^2 numbers beside the features,
for k = 10, d = 4,096 in float32 about 0.9 GB, plus one float64 d^2 matrix while solving. With
fewer rows than features the dual form works on n x n kernels instead.

Shapes: N rows, D features, K folds, L lambdas.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import linalg
from scipy.linalg import blas, lapack

from grace.errors import UserInputError

Array = NDArray[Any]
Kind = Literal["ridge", "adamw"]

LAMBDAS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2)
CHUNK_ROWS = 4096


@dataclass(frozen=True, slots=True)
class AdamW:
    """The short optimisation of ActCab (its published values are the defaults).

    On few rows this barely moves the weights from zero; raise `learning_rate` or `epochs` then.
    Source: ActCab, `src/train_ICL_K_fold_seq_avg.py`; here with a bias and without a sigmoid,
    as in arXiv 2509.09438 section 3.2.2.
    """

    learning_rate: float = 1e-5
    epochs: int = 2
    batch_size: int = 128
    weight_decay: float = 0.01


@dataclass(frozen=True, slots=True)
class Probe:
    """A fitted linear probe: `(x - mean) / scale @ weights + bias`. `lam` is None for AdamW."""

    weights: Array
    bias: float
    mean: Array
    scale: Array
    lam: float | None

    def predict(self, features_ND: Array) -> Array:
        """Return the uncalibrated score of every row, float64 of shape (N,)."""
        slope_D = self.weights / self.scale
        scores_N = np.empty(len(features_ND), dtype=np.float64)
        for rows in _chunks(len(features_ND)):
            centred_CD = np.asarray(features_ND[rows], dtype=self.mean.dtype) - self.mean
            scores_N[rows] = centred_CD @ slope_D + self.bias
        return scores_N


def assign_folds(groups_N: Sequence[Hashable], folds: int, seed: int = 0) -> Array:
    """Return the fold of every row; rows of one group share a fold, folds are of similar size.

    Raises:
        UserInputError: fewer groups than folds.
    """
    rows_of: dict[Hashable, list[int]] = {}
    for row, group in enumerate(groups_N):
        rows_of.setdefault(group, []).append(row)
    if len(rows_of) < folds:
        raise UserInputError(
            f"{folds} folds need at least {folds} questions, got {len(rows_of)}; "
            f"lower target.folds or use more questions"
        )
    names = list(rows_of)
    sizes = [(0, fold) for fold in range(folds)]
    fold_N = np.empty(len(groups_N), dtype=np.int64)
    for index in np.random.default_rng(seed).permutation(len(names)):
        size, fold = heapq.heappop(sizes)
        rows = rows_of[names[index]]
        fold_N[rows] = fold
        heapq.heappush(sizes, (size + len(rows), fold))
    return fold_N


def kfold_scores(
    features_ND: Array,
    labels_N: Array,
    groups_N: Sequence[Hashable],
    *,
    folds: int = 10,
    kind: Kind = "ridge",
    lambdas: Sequence[float] = LAMBDAS,
    inner: int = 3,
    standardise: bool = True,
    blocks: Sequence[int] = (),
    adamw: AdamW | None = None,
    seed: int = 0,
) -> Array:
    """Score every row with a probe that has seen neither the row nor its group.

    Args:
        features_ND: float32 or float64; the closed form works in that precision.
        labels_N: 1 or True where the response is right.
        groups_N: question of each row.
        folds: number of folds.
        kind: closed-form ridge, or ActCab's short AdamW.
        lambdas: ridge penalties per training row; with more than one, each outer fold chooses
            its own on `inner` folds that are held out of its training set.
        inner: how many folds take their turn as the inner held-out fold.
        standardise: scale by the training rows' spread.
        blocks: sizes of consecutive feature parts that should weigh the same in total.
        adamw: settings of `kind="adamw"`.
        seed: seed of the folds (and of AdamW's batches).

    Returns:
        Uncalibrated scores, float64 of shape (N,).

    Raises:
        UserInputError: features that are not finite, equal labels, or fewer groups than folds.
    Source: arXiv 2509.09438 section 3.2.2.
    """
    features_ND, label_N = _checked(features_ND, labels_N)
    fold_N = assign_folds(groups_N, folds, seed)
    scores_N = np.empty(len(label_N), dtype=np.float64)
    problem = _problem(features_ND, label_N, fold_N, folds, standardise, blocks, kind)
    for fold in range(folds):
        held = np.flatnonzero(fold_N == fold)
        if kind == "adamw":
            train = np.flatnonzero(fold_N != fold)
            probe = _fit_adamw(features_ND[train], label_N[train], adamw or AdamW(), seed)
        else:
            lam = _choose_lambda(problem, (fold,), lambdas, inner)
            probe = problem.fit((fold,), (lam,))[0]
        scores_N[held] = probe.predict(features_ND[held])
    return scores_N


def fit_probe(
    features_ND: Array,
    labels_N: Array,
    groups_N: Sequence[Hashable],
    *,
    folds: int = 10,
    kind: Kind = "ridge",
    lambdas: Sequence[float] = LAMBDAS,
    inner: int = 3,
    standardise: bool = True,
    blocks: Sequence[int] = (),
    adamw: AdamW | None = None,
    seed: int = 0,
) -> Probe:
    """Fit one probe on all rows, for scoring rows of other splits (see `kfold_scores`).

    Raises:
        UserInputError: features that are not finite, equal labels, or fewer groups than folds.
    """
    features_ND, label_N = _checked(features_ND, labels_N)
    if kind == "adamw":
        return _fit_adamw(features_ND, label_N, adamw or AdamW(), seed)
    if len(lambdas) == 1:
        folds, inner = 1, 0
    fold_N = assign_folds(groups_N, folds, seed)
    problem = _problem(features_ND, label_N, fold_N, folds, standardise, blocks, kind)
    lam = _choose_lambda(problem, (), lambdas, inner)
    return problem.fit((), (lam,))[0]


def _checked(features_ND: Array, labels_N: Array) -> tuple[Array, Array]:
    features_ND = np.asarray(features_ND)
    if features_ND.dtype not in (np.float32, np.float64):
        features_ND = features_ND.astype(np.float32)
    label_N = np.asarray(labels_N, dtype=np.float64)
    if features_ND.ndim != 2 or len(features_ND) != len(label_N):
        raise UserInputError(
            f"probe features have shape {features_ND.shape} for {len(label_N)} labels; "
            "give one row of features per label"
        )
    bad = [rows.start for rows in _chunks(len(label_N)) if not np.isfinite(features_ND[rows]).all()]
    if bad:
        row = bad[0] + int(np.argmin(np.isfinite(features_ND[bad[0] :]).all(axis=1)))
        raise UserInputError(
            f"probe features of row {row} are not finite; extract the features again in float32"
        )
    if not np.isfinite(label_N).all():
        raise UserInputError("probe labels are not finite; give 0 or 1 for every response")
    if label_N.min(initial=np.inf) == label_N.max(initial=-np.inf) or not len(label_N):
        raise UserInputError(
            f"all {len(label_N)} responses have the same label "
            f"({label_N[0] if len(label_N) else 'none'}), so a probe has nothing to learn; "
            "check the grader, or use questions that the model gets partly right"
        )
    return features_ND, label_N


def _chunks(count: int) -> Iterator[slice]:
    for start in range(0, count, CHUNK_ROWS):
        yield slice(start, min(start + CHUNK_ROWS, count))


class _Moments(NamedTuple):
    """Sums over a set of rows; only the lower triangle of the Gram matrix is filled."""

    rows: int
    sum_D: Array
    gram_DD: Array
    cross_D: Array
    label_sum: float

    def minus(self, other: _Moments) -> _Moments:
        return _Moments(
            self.rows - other.rows,
            self.sum_D - other.sum_D,
            self.gram_DD - other.gram_DD,
            self.cross_D - other.cross_D,
            self.label_sum - other.label_sum,
        )


@dataclass(frozen=True, slots=True)
class _Problem:
    """The data with a common shift and scale (which the fits undo; only for accuracy)."""

    features_ND: Array
    label_N: Array
    fold_N: Array
    folds: int
    standardise: bool
    prior_D: Array
    shift_D: Array
    unit_D: Array
    fold_moments: tuple[_Moments, ...]

    def fit(self, held: tuple[int, ...], lambdas: Sequence[float]) -> list[Probe]:
        """Fit one probe per lambda on the rows outside the folds `held`."""
        if self.fold_moments:
            return self._fit_primal(held, lambdas)
        return self._fit_dual(held, lambdas)

    def _fit_primal(self, held: tuple[int, ...], lambdas: Sequence[float]) -> list[Probe]:
        moments = self.fold_moments[-1]
        for fold in held:
            moments = moments.minus(self.fold_moments[fold])
        count, label_mean = moments.rows, moments.label_sum / moments.rows
        mean_D = moments.sum_D / count
        variance_D = np.diagonal(moments.gram_DD).astype(np.float64) / count - mean_D**2
        scale_D = self._scale(variance_D)
        gram_DD = moments.gram_DD if held else moments.gram_DD.copy(order="F")
        gram_DD = _centred_and_scaled(gram_DD, mean_D, scale_D, count)
        target_D = (moments.cross_D - mean_D * moments.label_sum) / scale_D
        solve = _Solver(gram_DD, target_D)
        return [
            self._probe(solve(lam * count), label_mean, mean_D, scale_D, lam) for lam in lambdas
        ]

    def _fit_dual(self, held: tuple[int, ...], lambdas: Sequence[float]) -> list[Probe]:
        train = np.flatnonzero(~np.isin(self.fold_N, held))
        rows_ND = (self.features_ND[train] - self.shift_D) / self.unit_D
        mean_D = rows_ND.mean(axis=0, dtype=np.float64)
        scale_D = self._scale(rows_ND.var(axis=0, dtype=np.float64))
        rows_ND = np.ascontiguousarray((rows_ND - mean_D) / scale_D, dtype=self.features_ND.dtype)
        label_mean = float(self.label_N[train].mean())
        solve = _Solver(_gram(rows_ND.T), self.label_N[train] - label_mean)
        return [
            self._probe(
                rows_ND.T @ solve(lam * len(train)).astype(rows_ND.dtype),
                label_mean,
                mean_D,
                scale_D,
                lam,
            )
            for lam in lambdas
        ]

    def _scale(self, variance_D: Array) -> Array:
        """Divide by this: the spread (1 for a constant feature) and the part's prior."""
        if not self.standardise:
            return self.prior_D / self.unit_D
        flat = variance_D <= 1e-10
        return np.where(flat, 1.0, np.sqrt(np.where(flat, 1.0, variance_D))) * self.prior_D

    def _probe(
        self, weights_D: Array, bias: float, mean_D: Array, scale_D: Array, lam: float
    ) -> Probe:
        dtype = self.features_ND.dtype
        return Probe(
            weights=np.asarray(weights_D, dtype=dtype),
            bias=float(bias),
            mean=np.asarray(self.shift_D + mean_D * self.unit_D, dtype=dtype),
            scale=np.asarray(scale_D * self.unit_D, dtype=dtype),
            lam=lam,
        )


def _problem(
    features_ND: Array,
    label_N: Array,
    fold_N: Array,
    folds: int,
    standardise: bool,
    blocks: Sequence[int],
    kind: Kind,
) -> _Problem:
    count, width = features_ND.shape
    if sum(blocks) not in (0, width):
        raise UserInputError(f"probe blocks {tuple(blocks)} do not add up to {width} features")
    prior_D = np.concatenate([np.full(size, size**0.5) for size in blocks] or [np.ones(width)])
    shift_D = features_ND.mean(axis=0, dtype=np.float64)
    unit_D = _spread(features_ND, shift_D)
    primal = kind == "ridge" and count * (1 - 1 / max(folds, 2)) >= width
    moments: list[_Moments] = []
    if primal:
        for fold in range(folds):
            rows = np.flatnonzero(fold_N == fold)
            moments.append(_sum_moments(features_ND, label_N, rows, shift_D, unit_D))
        moments.append(_total(moments))
    return _Problem(
        features_ND,
        label_N,
        fold_N,
        folds,
        standardise,
        prior_D,
        shift_D.astype(features_ND.dtype),
        unit_D.astype(features_ND.dtype),
        tuple(moments),
    )


def _spread(features_ND: Array, shift_D: Array) -> Array:
    square_D = np.zeros(features_ND.shape[1])
    for rows in _chunks(len(features_ND)):
        square_D += np.square(features_ND[rows] - shift_D.astype(features_ND.dtype)).sum(
            axis=0, dtype=np.float64
        )
    spread_D = np.sqrt(square_D / len(features_ND))
    return np.where(spread_D <= 1e-12 * (1 + np.abs(shift_D)), 1.0, spread_D)


def _sum_moments(
    features_ND: Array, label_N: Array, rows_N: Array, shift_D: Array, unit_D: Array
) -> _Moments:
    dtype, width = features_ND.dtype, features_ND.shape[1]
    shift_D, unit_D = shift_D.astype(dtype), unit_D.astype(dtype)
    gram_DD = np.zeros((width, width), dtype=dtype, order="F")
    sum_D, cross_D = np.zeros(width), np.zeros(width)
    for part in _chunks(len(rows_N)):
        chunk_CD = features_ND[rows_N[part]]
        chunk_CD -= shift_D
        chunk_CD /= unit_D
        gram_DD = _gram(chunk_CD, gram_DD)
        sum_D += chunk_CD.sum(axis=0, dtype=np.float64)
        cross_D += label_N[rows_N[part]].astype(dtype) @ chunk_CD
    return _Moments(len(rows_N), sum_D, gram_DD, cross_D, float(label_N[rows_N].sum()))


def _total(moments: Sequence[_Moments]) -> _Moments:
    gram_DD = moments[0].gram_DD.copy(order="F")
    for fold in moments[1:]:
        gram_DD += fold.gram_DD
    return _Moments(
        sum(fold.rows for fold in moments),
        np.sum([fold.sum_D for fold in moments], axis=0),
        gram_DD,
        np.sum([fold.cross_D for fold in moments], axis=0),
        sum(fold.label_sum for fold in moments),
    )


def _gram(rows_ND: Array, out_DD: Array | None = None) -> Array:
    """Return (or add to `out_DD`) the lower triangle of rows' * rows, Fortran-ordered."""
    update = blas.ssyrk if rows_ND.dtype == np.float32 else blas.dsyrk
    transposed = rows_ND.flags.f_contiguous and not rows_ND.flags.c_contiguous
    operand = rows_ND if transposed else rows_ND.T
    options: dict[str, Any] = {"trans": int(transposed), "lower": 1}
    if out_DD is not None:
        options |= {"beta": 1.0, "c": out_DD, "overwrite_c": 1}
    gram: Array = update(1.0, operand, **options)
    return gram


def _centred_and_scaled(gram_DD: Array, mean_D: Array, scale_D: Array, count: int) -> Array:
    """Centre and scale the lower triangle of a Gram matrix in place."""
    dtype = gram_DD.dtype
    update = blas.ssyr if dtype == np.float32 else blas.dsyr
    gram_DD = update(-float(count), mean_D.astype(dtype), lower=1, a=gram_DD, overwrite_a=1)
    inverse_D = (1 / scale_D).astype(dtype)
    gram_DD *= inverse_D
    gram_DD *= inverse_D[:, None]
    return gram_DD


class _Solver:
    """Solve (G + penalty I) w = t for several penalties; float32 is refined once in float64."""

    def __init__(self, gram_DD: Array, target_D: Array) -> None:
        self._gram_DD, self._target_D = gram_DD, np.asarray(target_D, dtype=np.float64)
        self._single = gram_DD.dtype == np.float32
        self._exact_DD = gram_DD.astype(np.float64, order="F") if self._single else None

    def __call__(self, penalty: float) -> Array:
        factor, solve = (
            (lapack.spotrf, lapack.spotrs) if self._single else (lapack.dpotrf, lapack.dpotrs)
        )
        shifted_DD = self._gram_DD.copy(order="F")
        shifted_DD.ravel(order="K")[:: len(shifted_DD) + 1] += penalty
        chol_DD, failed = factor(shifted_DD, lower=1, clean=0, overwrite_a=1)
        if failed:
            return self._solve_least_squares(penalty)
        weights_D = np.asarray(solve(chol_DD, self._target_D, lower=1)[0], dtype=np.float64)
        if self._exact_DD is not None:
            product_D = blas.dsymv(1.0, self._exact_DD, weights_D, lower=1) + penalty * weights_D
            weights_D = weights_D + solve(chol_DD, self._target_D - product_D, lower=1)[0]
        return weights_D

    def _solve_least_squares(self, penalty: float) -> Array:
        """Answer for a matrix that is singular in this precision (no or next to no penalty)."""
        lower_DD = np.tril(self._gram_DD).astype(np.float64)
        full_DD = lower_DD + np.tril(lower_DD, -1).T
        values_D, basis_DD = linalg.eigh(full_DD, overwrite_a=True)
        floor = values_D[-1] * len(values_D) * np.finfo(self._gram_DD.dtype).eps
        inverse_D = np.where(values_D > floor, 1 / np.maximum(values_D + penalty, 1e-300), 0.0)
        solution_D: Array = basis_DD @ (inverse_D * (basis_DD.T @ self._target_D))
        return solution_D


def _choose_lambda(
    problem: _Problem, outer: tuple[int, ...], lambdas: Sequence[float], inner: int
) -> float:
    """Return the lambda with the smallest squared error on folds held out of the training set."""
    if len(lambdas) == 1:
        return lambdas[0]
    rest = [fold for fold in range(problem.folds) if fold not in outer]
    start = (outer[0] if outer else 0) % len(rest)
    inner_folds = (rest[start:] + rest[:start])[: max(1, min(inner, len(rest) - 1))]
    error_L = np.zeros(len(lambdas))
    for fold in inner_folds:
        rows = np.flatnonzero(problem.fold_N == fold)
        label_N, held_ND = problem.label_N[rows], problem.features_ND[rows]
        for index, probe in enumerate(problem.fit((*outer, fold), lambdas)):
            error_L[index] += np.square(probe.predict(held_ND) - label_N).sum()
    return lambdas[int(np.argmin(error_L))]


def _fit_adamw(features_ND: Array, label_N: Array, settings: AdamW, seed: int) -> Probe:
    """Minimise the mean squared error on standardised features, from zero weights."""
    mean_D = features_ND.mean(axis=0, dtype=np.float64)
    scale_D = _spread(features_ND, mean_D)
    rows_ND = (features_ND - mean_D) / scale_D
    count, width = rows_ND.shape
    weights_D, bias = np.zeros(width + 1), float(label_N.mean())
    first_D, second_D, step = np.zeros(width + 1), np.zeros(width + 1), 0
    rng = np.random.default_rng(seed)
    for _ in range(settings.epochs):
        order_N = rng.permutation(count)
        for start in range(0, count, settings.batch_size):
            batch_B = order_N[start : start + settings.batch_size]
            step += 1
            error_B = rows_ND[batch_B] @ weights_D[:-1] + weights_D[-1] + bias - label_N[batch_B]
            slope_D = np.append(error_B @ rows_ND[batch_B], error_B.sum()) * (2 / len(batch_B))
            first_D += 0.1 * (slope_D - first_D)
            second_D += 0.001 * (slope_D**2 - second_D)
            weights_D *= 1 - settings.learning_rate * settings.weight_decay
            size_D = np.sqrt(second_D / (1 - 0.999**step)) + 1e-8
            weights_D -= settings.learning_rate * first_D / (1 - 0.9**step) / size_D
    return Probe(weights_D[:-1], bias + float(weights_D[-1]), mean_D, scale_D, None)
