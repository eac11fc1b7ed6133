"""Ridge by Cholesky: fold Gram matrices computed once, or the dual form for few rows.

Shapes: N rows, D features, C rows of one chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy import linalg
from scipy.linalg import blas, lapack

from grace.probe.problem import FoldFit, Problem
from grace.probe.rows import Array, Probe, chunks


class Direct:
    """Solves ridge problems one by one, without iteration."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem

    def fit(self, jobs: Sequence[FoldFit]) -> list[Probe]:
        """Fit one probe per job; jobs with the same training rows share their matrix."""
        made: dict[FoldFit, Probe] = {}
        for held in dict.fromkeys(job.held for job in jobs):
            lambdas = [job.lam for job in jobs if job.held == held]
            count = int((~np.isin(self._problem.fold_N, held)).sum())
            fit = self._primal if count >= self._problem.width else self._dual
            for lam, probe in zip(lambdas, fit(held, lambdas), strict=True):
                made[FoldFit(held, lam)] = probe
        return [made[job] for job in jobs]

    @cached_property
    def _moments(self) -> list[Moments]:
        """The moments of every fold, the total last."""
        problem = self._problem
        folds = [
            _sum_moments(problem, np.flatnonzero(problem.fold_N == fold))
            for fold in range(problem.folds)
        ]
        return [*folds, _total(folds)]

    def _primal(self, held: tuple[int, ...], lambdas: Sequence[float]) -> list[Probe]:
        moments = self._moments[-1]
        for fold in held:
            moments = moments.minus(self._moments[fold])
        count, label_mean = moments.rows, moments.label_sum / moments.rows
        mean_D = moments.sum_D / count
        variance_D = np.diagonal(moments.gram_DD).astype(np.float64) / count - mean_D**2
        scale_D = self._problem.scale(variance_D)
        gram_DD = moments.gram_DD if held else moments.gram_DD.copy(order="F")
        gram_DD = _centred_and_scaled(gram_DD, mean_D, scale_D, count)
        target_D = (moments.cross_D - mean_D * moments.label_sum) / scale_D
        solve = _Solver(gram_DD, target_D)
        return [
            self._problem.probe(solve(lam * count), label_mean, mean_D, scale_D, lam)
            for lam in lambdas
        ]

    def _dual(self, held: tuple[int, ...], lambdas: Sequence[float]) -> list[Probe]:
        problem = self._problem
        train = np.flatnonzero(~np.isin(problem.fold_N, held))
        rows_ND = problem.normal(train).astype(np.float64)
        mean_D = rows_ND.mean(axis=0)
        scale_D = problem.scale(rows_ND.var(axis=0))
        rows_ND = ((rows_ND - mean_D) / scale_D).astype(problem.features_ND.dtype)
        label_mean = float(problem.label_N[train].mean())
        solve = _Solver(gram(rows_ND.T), problem.label_N[train] - label_mean)
        return [
            problem.probe(
                solve(lam * len(train)).astype(rows_ND.dtype) @ rows_ND,
                label_mean,
                mean_D,
                scale_D,
                lam,
            )
            for lam in lambdas
        ]


class Moments(NamedTuple):
    """Sums over a set of rows; only the lower triangle of the Gram matrix is filled."""

    rows: int
    sum_D: Array
    gram_DD: Array
    cross_D: Array
    label_sum: float

    def minus(self, other: Moments) -> Moments:
        """Return the sums over the rows that are here and not in `other`."""
        return Moments(
            self.rows - other.rows,
            self.sum_D - other.sum_D,
            self.gram_DD - other.gram_DD,
            self.cross_D - other.cross_D,
            self.label_sum - other.label_sum,
        )


def _sum_moments(problem: Problem, rows_N: Array) -> Moments:
    dtype, width = problem.features_ND.dtype, problem.width
    gram_DD = np.zeros((width, width), dtype=dtype, order="F")
    sum_D, cross_D = np.zeros(width), np.zeros(width)
    for part in chunks(len(rows_N)):
        chunk_CD = problem.normal(rows_N[part])
        gram_DD = gram(chunk_CD, gram_DD)
        sum_D += chunk_CD.sum(axis=0, dtype=np.float64)
        cross_D += problem.label_N[rows_N[part]].astype(dtype) @ chunk_CD
    return Moments(len(rows_N), sum_D, gram_DD, cross_D, float(problem.label_N[rows_N].sum()))


def _total(moments: Sequence[Moments]) -> Moments:
    gram_DD = moments[0].gram_DD.copy(order="F")
    for fold in moments[1:]:
        gram_DD += fold.gram_DD
    return Moments(
        sum(fold.rows for fold in moments),
        np.sum([fold.sum_D for fold in moments], axis=0),
        gram_DD,
        np.sum([fold.cross_D for fold in moments], axis=0),
        sum(fold.label_sum for fold in moments),
    )


def gram(rows_ND: Array, out_DD: Array | None = None) -> Array:
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
