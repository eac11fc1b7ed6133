"""Logistic regression with one ridge penalty per block of features.

Features are standardised; constant ones get no weight. Blocks are scaled by their width, so that a
penalty means the same for a wide block and a narrow one. Penalties are chosen by log loss on folds
grouped by question, in single precision; the fit with the chosen ones is in double precision. The
problem is convex, so the fit does not depend on where it starts.

If there are more features than rows, as in large models, the fit has one unknown per row instead of
one per feature, which gives the same weights (a kernel machine with a linear kernel).

Shapes: N rows, D features of a block, W columns of the design matrix, K fits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from grace.probe.penalties import FIRST, Penalties, best_common, best_separate
from grace.probe.rows import Array, assign_folds, sigmoid

LEAST = 1e-4  # penalty of a free block
JITTER = {np.float64: 1e-10, np.float32: 1e-4}  # added to a diagonal, relative to its mean
FOLDS = 5  # fewer if there are fewer questions


class Logistic(NamedTuple):
    """A fit: log-odds = bias + the sum over blocks of features @ weights.

    Attributes:
        weights: of each block, for features as they came.
        bias: intercept.
        penalties: the chosen penalty of each penalised block.
        losses: held-out log loss of each row (N,).
        scores: held-out log-odds of each row (N,).
        fold_N: the fold in which each row was held out.
        held_out: the weights of the fit that leaves out each fold.
    """

    weights: list[Array]
    bias: float
    penalties: tuple[float, ...]
    losses: Array
    scores: Array
    fold_N: Array
    held_out: list[list[Array]]


def fit_logistic(
    blocks: Sequence[Array],
    labels_N: Array,
    groups_N: Sequence[Hashable],
    *,
    weights_N: Array | None = None,
    free: bool = False,
    first: float = FIRST,
    seed: int = 0,
) -> Logistic:
    """Fit weights and bias, choosing the penalty of each block on held-out folds.

    Args:
        blocks: parts of the features, each of shape (N, D).
        labels_N: 1 or True where the response is right.
        groups_N: question of each row; all rows of a question fall into one fold.
        weights_N: sample weights; None: all rows count alike.
        free: leave the last block practically unpenalised (`LEAST`), so that large penalties of
            the others lead to a fit of that block alone.
        first: one of `penalties.PENALTIES`, with which the search starts.
        seed: seed of the folds.
    """
    weight_N = np.ones(len(labels_N)) if weights_N is None else weights_N
    data = (blocks, np.asarray(labels_N, dtype=np.float64), weight_N, free)
    fold_N = assign_folds(groups_N, FOLDS, seed)
    train_NK, out_NK = _parts(fold_N)
    loss = _held_out(_Problem(*data, np.float32), train_NK, out_NK)
    penalties = best_separate(loss, len(blocks) - free, first)
    problem = _Problem(*data, np.float64)
    rows_NK = np.column_stack([train_NK, np.ones(len(labels_N), dtype=bool)])
    beta_WK = problem.fit(rows_NK, penalties)
    scores_N = problem.scores(beta_WK[:, :-1], penalties)[out_NK]
    *held_out, (weights, bias) = (problem.unscaled(beta_W, penalties) for beta_W in beta_WK.T)
    return Logistic(
        weights,
        bias,
        penalties,
        np.logaddexp(0, scores_N) - problem.label_N * scores_N,
        scores_N,
        fold_N,
        [weights for weights, _ in held_out],
    )


def quick_loss(
    blocks: Sequence[Array],
    labels_N: Array,
    groups_N: Sequence[Hashable],
    *,
    free: bool = False,
    first: float = FIRST,
    seed: int = 0,
) -> tuple[float, float]:
    """Return the held-out log loss of fits with the best common penalty, and that penalty.

    It takes a sixth of the time of `fit_logistic`, whose arguments these are.
    """
    data = (blocks, np.asarray(labels_N, dtype=np.float64), np.ones(len(labels_N)), free)
    parts = _parts(assign_folds(groups_N, FOLDS, seed))
    loss = _held_out(_Problem(*data, np.float32), *parts)
    best = best_common(loss, len(blocks) - free, first)
    return loss(best), best[0]


def _parts(fold_N: Array) -> tuple[Array, Array]:
    """Return which rows the fit of each fold is fitted to, and which it is rated on: (N, K)."""
    out_NK = fold_N[:, None] == np.unique(fold_N)
    return (~out_NK if out_NK.shape[1] > 1 else out_NK), out_NK


class _Design(NamedTuple):
    """The design matrix (N, W) for given penalties, the penalty of each column, and directions.

    `root_WW` is the Cholesky factor of the Hessian at log-odds 0. In its coordinates the loss there
    is equally curved in all directions, and L-BFGS takes tens of steps instead of hundreds.
    """

    x_NW: Array
    penalty_W: Array
    root_WW: Array


class _Problem:
    """A logistic regression on standardised blocks, and fits to some of its rows.

    The columns of the design matrix are ones, the free block if there is one, and the others. If
    these have more columns than there are rows, the Cholesky factor of their kernel, the sum of
    block @ block.T / penalty, stands for them, with a penalty of 1: it spans the same log-odds at
    the same cost. The numbers that many operations read are of the given `kind`.
    """

    def __init__(
        self,
        blocks: Sequence[Array],
        label_N: Array,
        weight_N: Array,
        free: bool,
        kind: type[np.floating[Any]],
    ) -> None:
        self.label_N, self.weight_N, self.kind = label_N, weight_N, kind
        self._blocks, count = blocks, len(label_N)
        self._means = [block.mean(0, dtype=np.float64) for block in blocks]
        self._scales = [_scale(block) for block in blocks]
        self._widths = [block.shape[1] for block in blocks[: len(blocks) - free]]
        others = range(len(self._widths))
        fixed = [self._scaled(place).astype(kind) for place in range(len(others), len(blocks))]
        self._fixed_NW = np.concatenate([np.ones((count, 1), kind), *fixed], axis=1)
        self._kernels = list[Array]()
        if sum(self._widths) > count:
            for place in others:
                block_ND = self._scaled(place)
                self._kernels.append((block_ND @ block_ND.T).astype(kind))
        else:
            scaled = [self._scaled(place).astype(kind) for place in others]
            self._x_NW = np.concatenate([self._fixed_NW, *scaled], axis=1)
            self._curved_WW = self._x_NW.T @ self._x_NW / (4 * count)
        self._made: tuple[tuple[float, ...], _Design] | None = None

    def _scaled(self, place: int) -> Array:
        """Return a standardised block in double precision, made anew so that one is in memory."""
        scaled_ND: Array = (self._blocks[place] - self._means[place]) / self._scales[place]
        return scaled_ND

    def design(self, penalties: tuple[float, ...]) -> _Design:
        """Return the design matrix for these penalties of the blocks that are not free."""
        if self._made is None or self._made[0] != penalties:
            fixed_W = np.full(self._fixed_NW.shape[1], LEAST)
            fixed_W[0] = 0.0
            if self._kernels:
                kernel_NN = np.zeros_like(self._kernels[0])
                for each_NN, penalty in zip(self._kernels, penalties, strict=True):
                    kernel_NN += each_NN / penalty
                factor_NN = _factor(kernel_NN, JITTER[self.kind]).T
                x_NW = np.concatenate([self._fixed_NW, factor_NN], axis=1)
                penalty_W = np.append(fixed_W, np.ones(len(kernel_NN)))
                curved_WW = x_NW.T @ x_NW / (4 * len(x_NW))
            else:
                x_NW, curved_WW = self._x_NW, self._curved_WW.copy()
                penalty_W = np.append(fixed_W, np.repeat(penalties, self._widths))
            curved_WW[np.diag_indices_from(curved_WW)] += penalty_W
            root_WW = _factor(curved_WW, JITTER[self.kind])
            self._made = penalties, _Design(x_NW, penalty_W.astype(self.kind), root_WW)
        return self._made[1]

    def fit(
        self, rows_NK: Array, penalties: tuple[float, ...], start_WK: Array | None = None
    ) -> Array:
        """Return the weight of each column (W, K) in K fits, each to some of the rows.

        They are one problem for L-BFGS, so that each of its steps reads the design matrix once.
        """
        from scipy.linalg import solve_triangular
        from scipy.optimize import minimize
        from threadpoolctl import threadpool_limits

        x_NW, penalty_W, root_WW = self.design(penalties)
        y_N1, penalty_W1 = self.label_N[:, None], penalty_W[:, None]
        shape = (len(penalty_W), rows_NK.shape[1])
        share_NK = self.weight_N[:, None] * rows_NK
        share_NK /= share_NK.sum(0)

        def loss(scaled: Array) -> tuple[float, Array]:
            scaled_WK = scaled.reshape(shape).astype(self.kind)
            beta_WK = solve_triangular(root_WW, scaled_WK, check_finite=False)
            logit_NK = (x_NW @ beta_WK).astype(np.float64)
            shrunk_WK = penalty_W1 * beta_WK
            loss_NK = np.logaddexp(0, logit_NK) - y_N1 * logit_NK
            value = np.vdot(share_NK, loss_NK) + np.vdot(shrunk_WK, beta_WK) / 2
            wrong_NK = (share_NK * (sigmoid(logit_NK) - y_N1)).astype(self.kind)
            slope_WK = x_NW.T @ wrong_NK + shrunk_WK
            slope_WK = solve_triangular(root_WW, slope_WK, trans="T", check_finite=False)
            return float(value), slope_WK.ravel().astype(np.float64)

        exact = self.kind is np.float64
        options = {"maxiter": 1000, "ftol": 1e-10 if exact else 1e-7, "gtol": 1e-6}
        start = np.zeros(shape) if start_WK is None else root_WW @ start_WK
        with threadpool_limits(1):  # a step is too short for threads, which would wait for work
            made = minimize(loss, start.ravel(), jac=True, method="L-BFGS-B", options=options)
        found: Array = solve_triangular(root_WW, made.x.reshape(shape).astype(self.kind))
        return found

    def scores(self, beta_WK: Array, penalties: tuple[float, ...]) -> Array:
        """Return the log-odds of every row (N, K) in K fits."""
        logit_NK: Array = (self.design(penalties).x_NW @ beta_WK).astype(np.float64)
        return logit_NK

    def unscaled(self, beta_W: Array, penalties: tuple[float, ...]) -> tuple[list[Array], float]:
        """Return the weights of each block and the bias for features that are not standardised."""
        from scipy.linalg import solve_triangular

        fixed = self._fixed_NW.shape[1]
        if self._kernels:
            factor_NN = self.design(penalties).x_NW[:, fixed:]
            dual_N = solve_triangular(factor_NN, beta_W[fixed:], lower=True, trans="T")
            parts = [self._scaled(place).T @ dual_N / one for place, one in enumerate(penalties)]
        else:
            parts = np.split(beta_W[fixed:], np.cumsum(self._widths)[:-1])
        parts += [beta_W[1:fixed]] if fixed > 1 else []
        weights = [part / scale for part, scale in zip(parts, self._scales, strict=True)]
        moved = sum(float(w @ m) for w, m in zip(weights, self._means, strict=True))
        return weights, float(beta_W[0]) - moved


def _factor(square: Array, jitter: float) -> Array:
    """Return the upper Cholesky factor of a matrix with a little added to its diagonal.

    It is ten times more, and so on, where rounding leaves the matrix without a factor.
    """
    from scipy.linalg import LinAlgError, cholesky

    size = float(square.diagonal().mean()) or 1.0
    while True:
        square[np.diag_indices_from(square)] += jitter * size
        try:
            factor: Array = cholesky(square)
        except LinAlgError:
            jitter *= 10
        else:
            return factor


def _scale(block_ND: Array) -> Array:
    """Return the divisors of a block: standard deviations times the square root of its width."""
    spread_D = block_ND.std(0, dtype=np.float64)
    flat_D = spread_D <= 1e-6 * max(float(spread_D.max(initial=0)), 1e-12)
    scale_D: Array = np.where(flat_D, np.inf, spread_D) * np.sqrt(block_ND.shape[1])
    return scale_D


def _held_out(problem: _Problem, train_NK: Array, out_NK: Array) -> Callable[[Penalties], float]:
    """Return the held-out loss as a function of the penalties.

    The fits start from those of the penalties before.
    """
    beta_WK: Array | None = None

    @functools.cache
    def loss(penalties: Penalties) -> float:
        nonlocal beta_WK
        beta_WK = problem.fit(train_NK, penalties, beta_WK)
        scores_N = problem.scores(beta_WK, penalties)[out_NK]
        losses_N = np.logaddexp(0, scores_N) - problem.label_N * scores_N
        return float(np.average(losses_N, weights=problem.weight_N))

    return loss
