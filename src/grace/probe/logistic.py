"""Logistic regression with a ridge penalty of its own for each block of features.

Features are standardised with the training rows' own mean and spread; those without spread get no
weight. A block weighs the same in total however wide it is. Penalties are chosen by log loss on
folds grouped by question. The problem is convex: the fit is its one minimum, to the tolerance.

Shapes: N rows, D features of a block, W features of all blocks.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from grace.probe.rows import Array, assign_folds, sigmoid

PENALTIES = tuple(10.0 ** (power / 2) for power in range(-12, 5))  # 1e-6 to 1e2
FIRST = PENALTIES.index(0.1)
LEAST = 1e-4
FOLDS = 5
SHORTER = 1e-5  # log loss by which another penalty must be better to be taken


class Logistic(NamedTuple):
    """A fit: log-odds = bias + sum of features @ weights over the blocks.

    `losses` is the log loss on held-out folds, per row (N,), `scores` the log-odds there. `fold_N`
    is the fold in which each row was held out, `held_out` the weights of the fits without them.
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
    folds: int = FOLDS,
    seed: int = 0,
) -> Logistic:
    """Fit weights and a bias, each block's penalty chosen on held-out folds.

    Args:
        blocks: parts of the features, each of shape (N, D).
        weights_N: how much each row counts; None: all alike.
        free: whether the last block has hardly any penalty (`LEAST`), so that large penalties of
            the others lead to a fit of that block alone.
        labels_N: 1 or True where the response is right.
        groups_N: question of each row; all rows of a question fall into one fold.
        folds: most folds; fewer where there are fewer questions.
        seed: seed of the folds.
    """
    label_N = np.asarray(labels_N, dtype=np.float64)
    problem = _Problem(blocks, label_N, np.ones(len(label_N)) if weights_N is None else weights_N)
    folds = min(folds, len(set(groups_N)))
    fold_N = assign_folds(groups_N, folds, seed) if folds > 1 else np.zeros(len(label_N))
    chosen = _search(problem, fold_N, len(blocks) - free)
    beta_W = problem.fit(np.ones(len(label_N), dtype=bool), chosen.penalties, chosen.folds[0])
    weights, bias = problem.unscaled(beta_W)
    held_out = [problem.unscaled(fold_W)[0] for fold_W in chosen.folds]
    found = (chosen.penalties, chosen.losses, chosen.scores)
    return Logistic(weights, bias, *found, np.unique(fold_N, return_inverse=True)[1], held_out)


class _Choice(NamedTuple):
    penalties: tuple[float, ...]
    losses: Array
    scores: Array
    folds: list[Array]  # the fit without each fold


class _Problem:
    """Ones, then standardised features side by side, and the regularised fit of any of the rows."""

    def __init__(self, blocks: Sequence[Array], label_N: Array, weight_N: Array) -> None:
        self.label_N, self.weight_N = label_N, weight_N
        self._means = [block.mean(0, dtype=np.float64) for block in blocks]
        self._scales = [_scale(block) for block in blocks]
        parts = zip(blocks, self._means, self._scales, strict=True)
        ones_N1 = np.ones((len(label_N), 1))
        self._x_NW = np.concatenate([ones_N1, *((block - m) / s for block, m, s in parts)], axis=1)
        self._widths = [block.shape[1] for block in blocks]
        self.width = self._x_NW.shape[1]
        self._curved_WW = self._x_NW.T @ self._x_NW / (4 * len(label_N))
        self._root: tuple[tuple[float, ...], Array] = ((), self._curved_WW)

    def fit(self, rows_N: Array, penalties: Sequence[float], start_W: Array) -> Array:
        """Return the bias and the weights that fit some of the rows."""
        from scipy.linalg import solve_triangular
        from scipy.optimize import minimize

        x_NW, y_N = self._x_NW[rows_N], self.label_N[rows_N]
        share_N = self.weight_N[rows_N] / self.weight_N[rows_N].sum()
        filled = [*penalties, LEAST][: len(self._widths)]
        penalty_W = np.append(0.0, np.repeat(filled, self._widths))
        root_WW = self._directions(tuple(penalties), penalty_W)

        def loss(scaled_W: Array) -> tuple[float, Array]:
            beta_W = solve_triangular(root_WW, scaled_W, check_finite=False)
            logit_N = x_NW @ beta_W
            shrunk_W = penalty_W * beta_W
            value = float(share_N @ (np.logaddexp(0, logit_N) - y_N * logit_N))
            slope_W = (share_N * (sigmoid(logit_N) - y_N)) @ x_NW + shrunk_W
            value += float(shrunk_W @ beta_W / 2)
            return value, solve_triangular(root_WW, slope_W, trans="T", check_finite=False)

        options = {"maxiter": 1000, "ftol": 1e-10, "gtol": 1e-6}
        scaled_W = root_WW @ start_W
        made = minimize(loss, scaled_W, jac=True, method="L-BFGS-B", options=options)
        found: Array = solve_triangular(root_WW, made.x)
        return found

    def _directions(self, penalties: tuple[float, ...], penalty_W: Array) -> Array:
        """Return the triangle to whose coordinates the fit is scaled.

        In them the loss of all rows is curved alike in all directions where the log-odds are 0, so
        that L-BFGS takes tens of steps in place of hundreds.
        """
        from scipy.linalg import cholesky

        if self._root[0] != penalties:
            curved_WW = self._curved_WW.copy()
            curved_WW[np.diag_indices_from(curved_WW)] += penalty_W
            self._root = (penalties, cholesky(curved_WW))
        return self._root[1]

    def log_odds(self, rows_N: Array, beta: Array) -> Array:
        """Return the log-odds of some of the rows."""
        found: Array = self._x_NW[rows_N] @ beta
        return found

    def unscaled(self, beta: Array) -> tuple[list[Array], float]:
        """Return the weights of each block and the bias, for features as they came."""
        parts = np.split(beta[1:], np.cumsum(self._widths)[:-1])
        weights = [part / scale for part, scale in zip(parts, self._scales, strict=True)]
        moved = sum(float(w @ m) for w, m in zip(weights, self._means, strict=True))
        return weights, float(beta[0]) - moved


def _scale(block_ND: Array) -> Array:
    """Return what a block is divided by: its spread, and the root of its width."""
    spread_D = block_ND.std(0, dtype=np.float64)
    flat_D = spread_D <= 1e-6 * max(float(spread_D.max(initial=0)), 1e-12)
    scale_D: Array = np.where(flat_D, np.inf, spread_D) * np.sqrt(block_ND.shape[1])
    return scale_D


def _search(problem: _Problem, fold_N: Array, blocks: int) -> _Choice:
    """Return the penalties with the smallest held-out loss, one block at a time, twice at most."""
    held = [fold_N == fold for fold in np.unique(fold_N)]
    tried: dict[tuple[float, ...], _Choice] = {}
    starts = [np.zeros(problem.width) for _ in held]

    def attempt(penalties: tuple[float, ...]) -> float:
        if penalties not in tried:
            losses_N, scores_N = np.empty(len(fold_N)), np.empty(len(fold_N))
            for place, out_N in enumerate(held):
                train_N = ~out_N if len(held) > 1 else out_N
                starts[place] = problem.fit(train_N, penalties, starts[place])
                scores_N[out_N] = problem.log_odds(out_N, starts[place])
            losses_N = np.logaddexp(0, scores_N) - problem.label_N * scores_N
            tried[penalties] = _Choice(penalties, losses_N, scores_N, list(starts))
        return float(np.average(tried[penalties].losses, weights=problem.weight_N))

    best = (PENALTIES[FIRST],) * blocks
    for _ in range(2):
        before = best
        for block in range(blocks):
            best = _descend(best, block, attempt)
        if best == before:
            break
    return tried[best]


def _descend(best: tuple[float, ...], block: int, attempt: Any) -> tuple[float, ...]:
    """Walk one block's penalty up, else down, for as long as the held-out loss falls."""
    loss = attempt(best)
    for step in (1, -1):
        place, moved = PENALTIES.index(best[block]), False
        while 0 <= place + step < len(PENALTIES):
            other = (*best[:block], PENALTIES[place + step], *best[block + 1 :])
            found = attempt(other)
            if found >= loss - SHORTER:
                break
            best, loss, place, moved = other, found, place + step, True
        if moved:
            break
    return best
