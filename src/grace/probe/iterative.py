"""Ridge by conjugate gradients, all folds at once: for many rows of many features.

One Cholesky factor of a sample's Gram matrix (two rows per feature) preconditions every fold and
every penalty, so that about twenty passes over the rows serve them all, whatever the spectrum of
the features. Memory: one copy of the features and two d^2 matrices.

Shapes: N rows, D features, J jobs, C rows of one chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
from scipy.linalg import blas, lapack

from grace.probe.problem import FoldFit, Problem
from grace.probe.rows import Array, Probe

SAMPLE_PER_FEATURE = 2
CHUNK = 8192
MAX_STEPS = 100
Product = Callable[[Array], Array]
TOLERANCE = {np.dtype(np.float32): 2e-5, np.dtype(np.float64): 1e-11}


class Iterative:
    """Solves many ridge problems together; None where one does not converge."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._normal_ND = problem.normal(np.arange(len(problem.label_N)))

    @cached_property
    def _sample_gram_DD(self) -> Array:
        """The lower triangle of a sample's Gram matrix, scaled to one row."""
        count, width = self._normal_ND.shape
        step = max(1, count // (SAMPLE_PER_FEATURE * width))
        sample_ND = np.ascontiguousarray(self._normal_ND[::step])
        update = blas.ssyrk if sample_ND.dtype == np.float32 else blas.dsyrk
        gram_DD: Array = update(1 / len(sample_ND), sample_ND.T, lower=1)
        return gram_DD

    def fit(self, jobs: Sequence[FoldFit]) -> list[Probe | None]:
        """Fit one probe per job."""
        made: dict[FoldFit, Probe | None] = {}
        for lam in dict.fromkeys(job.lam for job in jobs):
            same = [job for job in jobs if job.lam == lam]
            made.update(zip(same, self._fit(same, lam), strict=True))
        return [made[job] for job in jobs]

    def _fit(self, jobs: Sequence[FoldFit], lam: float) -> list[Probe | None]:
        problem, dtype = self._problem, self._normal_ND.dtype
        held_NJ = [np.isin(problem.fold_N, job.held) for job in jobs]
        train_NJ = (~np.stack(held_NJ, axis=1)).astype(dtype)
        count_J = train_NJ.sum(axis=0, dtype=np.float64)
        bias_J = problem.label_N @ train_NJ / count_J
        mean_DJ, variance_DJ = self._statistics(train_NJ, count_J)
        scale_DJ = np.stack([problem.scale(column) for column in variance_DJ.T], axis=1)
        penalty_DJ = lam * count_J * scale_DJ**2
        residual_NJ = train_NJ * (problem.label_N[:, None] - bias_J)
        target_DJ: Array = (self._normal_ND.T @ residual_NJ.astype(dtype)).astype(np.float64)

        def apply(weights_DJ: Array) -> Array:
            product_DJ = self._normal_product(weights_DJ, mean_DJ, train_NJ)
            product_DJ += penalty_DJ * weights_DJ
            return product_DJ

        weights_DJ, solved_J = self._conjugate(apply, target_DJ, penalty_DJ.mean(axis=1), count_J)
        return [
            problem.probe(
                weights_DJ[:, j] * scale_DJ[:, j],
                bias_J[j],
                mean_DJ[:, j],
                scale_DJ[:, j],
                lam,
            )
            if solved_J[j]
            else None
            for j in range(len(jobs))
        ]

    def _statistics(self, train_NJ: Array, count_J: Array) -> tuple[Array, Array]:
        shape = (self._normal_ND.shape[1], train_NJ.shape[1])
        sum_DJ, square_DJ = np.zeros(shape), np.zeros(shape)
        for start in range(0, len(train_NJ), CHUNK):
            rows_CD, mask_CJ = (
                self._normal_ND[start : start + CHUNK],
                train_NJ[start : start + CHUNK],
            )
            sum_DJ += rows_CD.T @ mask_CJ
            if self._problem.standardise:
                square_DJ += np.square(rows_CD).T @ mask_CJ
        mean_DJ = sum_DJ / count_J
        return mean_DJ, square_DJ / count_J - mean_DJ**2

    def _normal_product(self, weights_DJ: Array, mean_DJ: Array, train_NJ: Array) -> Array:
        """Return X'Xw of every job's centred training rows."""
        single_DJ = weights_DJ.astype(self._normal_ND.dtype)
        offset_J = (mean_DJ * weights_DJ).sum(axis=0).astype(single_DJ.dtype)
        out_DJ, sum_J = np.zeros(weights_DJ.shape), np.zeros(weights_DJ.shape[1])
        for start in range(0, len(train_NJ), CHUNK):
            rows_CD = self._normal_ND[start : start + CHUNK]
            score_CJ = (rows_CD @ single_DJ - offset_J) * train_NJ[start : start + CHUNK]
            out_DJ += rows_CD.T @ score_CJ
            sum_J += score_CJ.sum(axis=0, dtype=np.float64)
        out_DJ -= mean_DJ * sum_J
        return out_DJ

    def _conjugate(
        self, apply: Product, target_DJ: Array, penalty_D: Array, count_J: Array
    ) -> tuple[Array, Array]:
        """Conjugate gradients on all columns, each with its own step lengths."""
        precondition = self._factor(penalty_D, float(count_J.mean()))
        tolerance = TOLERANCE[self._normal_ND.dtype] ** 2
        weights_DJ, rest_DJ = np.zeros(target_DJ.shape), target_DJ.copy()
        ready_DJ = precondition(rest_DJ)
        direction_DJ = ready_DJ.copy()
        size_J = start_J = (rest_DJ * ready_DJ).sum(axis=0)
        for _ in range(MAX_STEPS):
            if (size_J <= tolerance * start_J).all():
                break
            product_DJ = apply(direction_DJ)
            length_J = size_J / np.maximum((direction_DJ * product_DJ).sum(axis=0), 1e-300)
            weights_DJ += length_J * direction_DJ
            rest_DJ -= length_J * product_DJ
            ready_DJ = precondition(rest_DJ)
            before_J, size_J = size_J, (rest_DJ * ready_DJ).sum(axis=0)
            direction_DJ = ready_DJ + size_J / np.maximum(before_J, 1e-300) * direction_DJ
        return weights_DJ, size_J <= tolerance * start_J

    def _factor(self, penalty_D: Array, count: float) -> Product:
        gram_DD = self._sample_gram_DD
        single = gram_DD.dtype == np.float32
        factor, solve = (lapack.spotrf, lapack.spotrs) if single else (lapack.dpotrf, lapack.dpotrs)
        floor = float(np.trace(gram_DD)) * count * np.finfo(gram_DD.dtype).eps
        failed = 1
        while failed:
            shifted_DD = gram_DD * gram_DD.dtype.type(count)
            shifted_DD.ravel(order="K")[:: len(gram_DD) + 1] += np.maximum(penalty_D, floor)
            chol_DD, failed = factor(shifted_DD, lower=1, clean=0, overwrite_a=1)
            floor *= 10

        def precondition(rest_DJ: Array) -> Array:
            ready_DJ: Array = solve(chol_DD, rest_DJ, lower=1)[0]
            return ready_DJ.astype(np.float64)

        return precondition
