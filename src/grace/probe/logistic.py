"""Logistic regression with one ridge penalty per block of features.

Features are standardised; constant ones get no weight. Blocks are scaled by their width, so that a
penalty means the same for a wide block and a narrow one. Penalties are chosen by log loss on folds
grouped by question, in single precision; the fit with the chosen ones is in double precision. The
problem is convex, so the fit does not depend on where it starts.

With several sources, the log loss on sources left out joins that on questions left out. What holds
for other questions of a source needs a weaker penalty than what holds for another source. How often
a source is right does not carry over to it, so its level is set to that of its own grades.

If there are more features than rows, as in large models, the fit has one unknown per row instead of
one per feature, which gives the same weights (a kernel machine with a linear kernel).

Shapes: N rows, D features of a block, W columns of the design matrix, K fits.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from grace.probe.rows import (
    FOLDS,
    Array,
    assign_folds,
    base_rate,
    losses_and_sigmoid,
    losses_at,
    sigmoid,
    sources_in,
    weights_of,
)

PENALTIES = tuple(10.0 ** (power / 2) for power in range(-12, 5))  # 1e-6 to 1e2
FIRST = 0.1  # the penalty at which a search starts, unless a similar fit has found a better one
EVERY_FOLD = dict.fromkeys(range(FOLDS), FIRST)  # where the searches without each fold start
SHORTER = 1e-5  # smallest improvement of the log loss for which the search goes on

Penalties = tuple[float, ...]
"""The penalty of each block of features."""


def best_common(loss: Callable[[Penalties], float], blocks: int, first: float) -> Penalties:
    """Return the best penalties that are the same for all blocks; the search starts at `first`."""
    return _descend(loss, (first,) * blocks, range(blocks))


def best_separate(loss: Callable[[Penalties], float], blocks: int, first: float) -> Penalties:
    """Return the penalties after one round of coordinate descent from the best common one."""
    best = best_common(loss, blocks, first)
    for block in range(blocks):
        best = _descend(loss, best, (block,))
    return best


def _descend(
    loss: Callable[[Penalties], float], best: Penalties, blocks: Collection[int]
) -> Penalties:
    """Raise the penalty of some blocks while the loss falls; if it never does, lower it."""
    for step in (1, -1):
        moved = False
        while True:
            place = PENALTIES.index(best[min(blocks)]) + step
            if not 0 <= place < len(PENALTIES):
                break
            other = tuple(
                PENALTIES[place] if block in blocks else penalty
                for block, penalty in enumerate(best)
            )
            if loss(other) >= loss(best) - SHORTER:
                break
            best, moved = other, True
        if moved:
            break
    return best


LEAST = 1e-4  # penalty of a free block
JITTER = {np.float64: 1e-10, np.float32: 1e-4}  # added to a diagonal, relative to its mean
LANDMARKS = 4_000  # most answers whose states the weights combine, if there are more features
AT_ONCE = 500  # rows that are standardised together in double precision


class Logistic(NamedTuple):
    """A fit: log-odds = bias + the sum over blocks of features @ weights."""

    weights: list[Array]  # of each block, for features as they came
    bias: float
    penalties: tuple[float, ...]  # chosen, of each penalised block
    losses: Array  # held-out log loss (N,), at penalties that were chosen by it
    scores: Array  # held-out log-odds (N,), likewise
    fold_N: Array  # in which each row was held out
    held_out: list[list[Array]]  # weights of the fit without each fold
    # held-out log-odds (N,), at penalties chosen without the row's fold, too; nan if not asked for
    nested: Array


class LayerLoss(NamedTuple):
    """The held-out log loss of fits with the best common penalty, and that penalty."""

    loss: float
    penalty: float
    # the same for each fold, on the others, by fits without it, if they were asked for
    inner: tuple[tuple[float, float], ...]


def fit_logistic(
    blocks: Sequence[Array],
    labels_N: Array,
    groups_N: Sequence[Hashable],
    *,
    weights_N: Array | None = None,
    free: bool = False,
    first: float = FIRST,
    nested: Mapping[int, float] | None = None,
    seed: int = 0,
) -> Logistic:
    """Fit blocks (N, D), each with a penalty chosen on grouped folds; `free`: the last has none.

    `nested` asks for the scores of that name in some folds, and says where each search starts.
    """
    fold_N = assign_folds(groups_N, seed=seed)
    weight_N = weights_of(groups_N) * (1.0 if weights_N is None else weights_N)
    search = _Search(blocks, labels_N, fold_N, weight_N, free, groups_N, paired=bool(nested))
    penalties = best_separate(search.loss, search.blocks, first)
    nested_N = search.nested(nested or {})
    data = search.data
    del search
    problem = _Problem(*data, np.float64, penalties)
    rows_NK = np.column_stack([_trained(fold_N), np.ones(len(labels_N), dtype=bool)])
    beta_WK = problem.fit(rows_NK, penalties)
    scores_N = problem.scores(beta_WK[:, :-1], penalties)[np.arange(len(fold_N)), fold_N]
    *held_out, (weights, bias) = (problem.unscaled(beta_W, penalties) for beta_W in beta_WK.T)
    return Logistic(
        weights,
        bias,
        penalties,
        losses_at(scores_N, problem.label_N),
        scores_N,
        fold_N,
        [weights for weights, _ in held_out],
        nested_N,
    )


def quick_loss(
    blocks: Sequence[Array],
    labels_N: Array,
    fold_N: Array,
    groups_N: Sequence[Hashable],
    *,
    free: bool = False,
    first: float = FIRST,
    nested: bool = True,
) -> LayerLoss:
    """Return how good fits with one penalty for all blocks are, in a sixth of the time of a fit."""
    search = _Search(blocks, labels_N, fold_N, None, free, groups_N, paired=nested)
    best = best_common(search.loss, search.blocks, first)
    inner = []
    for fold in range(int(fold_N.max()) + 1 if nested else 0):
        loss = functools.partial(search.loss, outer=fold)
        own = best_common(loss, search.blocks, best[0])
        inner.append((loss(own), own[0]))
    return LayerLoss(search.loss(best), best[0], tuple(inner))


def nested_scores(
    blocks: Sequence[Array],
    labels_N: Array,
    fold_N: Array,
    groups_N: Sequence[Hashable],
    firsts: Mapping[int, float],
    *,
    free: bool = False,
) -> Array:
    """Return `Logistic.nested` alone."""
    return _Search(blocks, labels_N, fold_N, None, free, groups_N, paired=True).nested(firsts)


def _trained(fold_N: Array) -> Array:
    """Return the rows that the fit without each fold is fitted to: (N, K)."""
    kept_NK: Array = fold_N[:, None] != np.arange(fold_N.max() + 1)
    return kept_NK if kept_NK.shape[1] > 1 else ~kept_NK


class _Search:
    """The held-out losses of penalties, each computed once, from fits that start from the last.

    A fit without two folds rates either of them for the choice that leaves out the other one. So
    the choices of all K folds share K (K - 1) / 2 fits at each penalty; only a `paired` search has
    these. They share one fit without each source, too, which leaves out no fold.
    """

    def __init__(
        self,
        blocks: Sequence[Array],
        labels_N: Array,
        fold_N: Array,
        weights_N: Array | None,
        free: bool,
        groups_N: Sequence[Hashable],
        *,
        paired: bool,
    ) -> None:
        weight_N = np.ones(len(labels_N)) if weights_N is None else weights_N
        self.data = (blocks, np.asarray(labels_N, dtype=np.float64), weight_N, free)
        self.blocks, self._fold_N = len(blocks) - free, fold_N
        self._problem = _Problem(*self.data, np.float32)
        self._pairs = list(itertools.combinations(range(int(fold_N.max()) + 1), 2))
        if not paired or len(self._pairs) < 2:  # two folds leave no third
            self._pairs = []
        out_NK = ~_trained(fold_N)
        left_NP = [~(out_NK[:, one] | out_NK[:, other]) for one, other in self._pairs]
        self._single_NK, self._pair_NP = ~out_NK, np.array(left_NP).T
        self._source_N = np.unique(sources_in(groups_N), return_inverse=True)[1]
        self._starts: list[Array | None] = [None, None, None]
        self._found: dict[Penalties, tuple[Array, Array, Array]] = {}

    def loss(self, penalties: Penalties, outer: int | None = None) -> float:
        """Return the mean held-out loss, or that of the other folds by fits without `outer`.

        With several sources, the mean loss of the sources left out is added.
        """
        score_N, score_KN, apart_N = self._scores(penalties)
        kept_N = np.full(len(score_N), True) if outer is None else self._fold_N != outer
        score_N = (score_N if outer is None else score_KN[outer])[kept_N]
        label_N, weight_N = (each_N[kept_N] for each_N in self.data[1:3])
        found = float(np.average(losses_at(score_N, label_N), weights=weight_N))
        if len(apart_N):
            apart_N, source_N = apart_N[kept_N], self._source_N[kept_N]
            rows = [source_N == source for source in np.unique(source_N)]
            found += float(np.mean([_at_own_level(apart_N[own], label_N[own]) for own in rows]))
        return found

    def nested(self, firsts: Mapping[int, float]) -> Array:
        """Return the log-odds of the rows of these folds at penalties chosen without their fold."""
        nested_N = np.full(len(self._fold_N), np.nan)
        for fold, first in firsts.items():
            if fold > self._fold_N.max():
                break
            best = (PENALTIES[-1],) * self.blocks  # too few folds for a choice
            if self._pairs:
                loss = functools.partial(self.loss, outer=fold)
                best = best_separate(loss, self.blocks, first)
            out_N = self._fold_N == fold
            nested_N[out_N] = self._scores(best)[0][out_N]
        return nested_N

    def _scores(self, penalties: Penalties) -> tuple[Array, Array, Array]:
        """Return log-odds by the fits without a row's fold (N,), and without fold k, too (K, N).

        The last ones are by fits without a row's source (N,), [] unless there are several.
        """
        if penalties not in self._found:
            row_N, folds = np.arange(len(self._fold_N)), int(self._fold_N.max()) + 1
            score_N = self._fitted(0, self._single_NK, penalties)[row_N, self._fold_N]
            score_KN = np.zeros((folds, len(row_N)))
            if self._pairs:
                by_pair_NP = self._fitted(1, self._pair_NP, penalties)
                for place, pair in enumerate(self._pairs):
                    for left, rated in (pair, pair[::-1]):
                        in_N = self._fold_N == rated
                        score_KN[left, in_N] = by_pair_NP[in_N, place]
            apart_N = np.empty(0)
            if len(self._source_N):
                apart_NS = self._fitted(2, _trained(self._source_N), penalties)
                apart_N = apart_NS[row_N, self._source_N]
            self._found[penalties] = score_N, score_KN, apart_N
        return self._found[penalties]

    def _fitted(self, kind: int, rows_NK: Array, penalties: Penalties) -> Array:
        beta_WK = self._problem.fit(rows_NK, penalties, self._starts[kind])
        self._starts[kind] = beta_WK
        return self._problem.scores(beta_WK, penalties)


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
    the same cost. Of more than `LANDMARKS` rows that many span the weights (Nystroem's method), so
    that memory grows with the rows and not with their square. The numbers that many operations
    read are of the given `kind`. With `only`, fits are at these penalties alone.
    """

    def __init__(
        self,
        blocks: Sequence[Array],
        label_N: Array,
        weight_N: Array,
        free: bool,
        kind: type[np.floating[Any]],
        only: Penalties | None = None,
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
            self._landmarks = _landmarks(count)
            self._summed = only is not None
            for place in others:
                kernel_NM = self._kernel(place)
                if only is not None:
                    kernel_NM /= only[place]
                if self._summed and self._kernels:
                    self._kernels[0] += kernel_NM
                else:
                    self._kernels.append(kernel_NM)
        else:
            self._x_NW = np.empty((count, self._fixed_NW.shape[1] + sum(self._widths)), kind)
            parts = np.split(self._x_NW, np.cumsum([self._fixed_NW.shape[1], *self._widths]), 1)
            parts[0][:] = self._fixed_NW
            for place, part in zip(others, parts[1:], strict=False):
                part[:] = self._scaled(place)
            self._curved_WW = self._x_NW.T @ self._x_NW / (4 * count)
        self._made: tuple[tuple[float, ...], _Design] | None = None

    def _scaled(self, place: int, rows: Any = np.s_[:]) -> Array:
        """Return a standardised block in double precision, made anew so that one is in memory."""
        block_ND = self._blocks[place][rows]
        scaled_ND: Array = (block_ND - self._means[place]) / self._scales[place]
        return scaled_ND

    def _kernel(self, place: int) -> Array:
        """Return the products (N, M) of a block's rows with those of M landmarks."""
        marks_MD, count = self._scaled(place, self._landmarks), len(self.label_N)
        if len(marks_MD) == count:
            return (marks_MD @ marks_MD.T).astype(self.kind)
        kernel_NM = np.empty((count, len(marks_MD)), self.kind)
        for start in range(0, count, AT_ONCE):
            rows = np.s_[start : start + AT_ONCE]
            kernel_NM[rows] = self._scaled(place, rows) @ marks_MD.T
        return kernel_NM

    def design(self, penalties: tuple[float, ...]) -> _Design:
        """Return the design matrix for these penalties of the blocks that are not free."""
        if self._made is None or self._made[0] != penalties:
            fixed_W = np.full(self._fixed_NW.shape[1], LEAST)
            fixed_W[0] = 0.0
            if self._kernels:
                x_NW = np.concatenate([self._fixed_NW, self._factored(penalties)], axis=1)
                penalty_W = np.append(fixed_W, np.ones(len(self._landmarks)))
                curved_WW = x_NW.T @ x_NW / (4 * len(x_NW))
            else:
                x_NW, curved_WW = self._x_NW, self._curved_WW.copy()
                penalty_W = np.append(fixed_W, np.repeat(penalties, self._widths))
            curved_WW[np.diag_indices_from(curved_WW)] += penalty_W
            root_WW = _factor(curved_WW, JITTER[self.kind])
            self._made = penalties, _Design(x_NW, penalty_W.astype(self.kind), root_WW)
        return self._made[1]

    def _factored(self, penalties: Penalties) -> Array:
        """Return the columns (N, M) that stand for the blocks: kernel @ inverse(factor)."""
        from scipy.linalg import solve_triangular

        kernel_NM = self._kernels[0]
        if not self._summed:
            kernel_NM = np.zeros_like(self._kernels[0])
            for each_NM, penalty in zip(self._kernels, penalties, strict=True):
                kernel_NM += each_NM / penalty
        self._root_MM = _factor(kernel_NM[self._landmarks], JITTER[self.kind])
        if len(kernel_NM) == len(self._landmarks):
            return self._root_MM.T
        factored_MN = solve_triangular(self._root_MM, kernel_NM.T, trans="T", check_finite=False)
        columns_NM: Array = factored_MN.T
        return columns_NM

    def fit(
        self, rows_NK: Array, penalties: tuple[float, ...], start_WK: Array | None = None
    ) -> Array:
        """Return the weight of each column (W, K) in K fits, each to some of the rows."""
        from scipy.linalg import get_lapack_funcs
        from scipy.optimize import minimize

        x_NW, penalty_W, root_WW = self.design(penalties)
        y_N1, penalty_W1 = self.label_N[:, None], penalty_W[:, None]
        shape = (len(penalty_W), rows_NK.shape[1])
        share_NK = self.weight_N[:, None] * rows_NK
        share_NK /= share_NK.sum(0)
        (solve,) = get_lapack_funcs(("trtrs",), (root_WW,))  # without the checks, which take longer

        slopes = [np.empty(0)]  # at the last point: `minimize` asks for it right after the loss

        def loss(scaled: Array) -> float:
            scaled_WK = scaled.reshape(shape).astype(self.kind)
            beta_WK = solve(root_WW, scaled_WK)[0]
            logit_NK = (x_NW @ beta_WK).astype(np.float64)
            shrunk_WK = penalty_W1 * beta_WK
            loss_NK, c_NK = losses_and_sigmoid(logit_NK, y_N1)
            value = np.vdot(share_NK, loss_NK) + np.vdot(shrunk_WK, beta_WK) / 2
            wrong_NK = (share_NK * (c_NK - y_N1)).astype(self.kind)
            slope_WK = x_NW.T @ wrong_NK + shrunk_WK
            slope_WK = solve(root_WW, slope_WK, trans=1)[0]
            slopes[0] = slope_WK.ravel().astype(np.float64)
            return float(value)

        exact = self.kind is np.float64
        options = {"maxiter": 1000, "ftol": 1e-10 if exact else 1e-7, "gtol": 1e-6}
        start = np.zeros(shape) if start_WK is None else root_WW @ start_WK
        how: dict[str, Any] = {"method": "L-BFGS-B", "options": options}
        with _threads().limit(limits=1):  # for whose work a step is too short
            made = minimize(loss, start.ravel(), jac=lambda _: slopes[0], **how)
        found: Array = solve(root_WW, made.x.reshape(shape).astype(self.kind))[0]
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
            self.design(penalties)
            dual_M = solve_triangular(self._root_MM, beta_W[fixed:])
            marks = self._landmarks
            parts = [
                self._scaled(place, marks).T @ dual_M / one for place, one in enumerate(penalties)
            ]
        else:
            parts = np.split(beta_W[fixed:], np.cumsum(self._widths)[:-1])
        parts += [beta_W[1:fixed]] if fixed > 1 else []
        weights = [part / scale for part, scale in zip(parts, self._scales, strict=True)]
        moved = sum(float(w @ m) for w, m in zip(weights, self._means, strict=True))
        return weights, float(beta_W[0]) - moved


def _at_own_level(score_N: Array, label_N: Array) -> float:
    """Return the mean loss of log-odds, moved so that their mean probability is that of a label."""
    from scipy.optimize import brentq

    middle = base_rate(label_N)  # of a label that is neither 0 nor 1
    right = float(sigmoid(np.array(middle)))
    low, high = middle - float(score_N.max()), middle - float(score_N.min())
    moved = brentq(lambda by: float(sigmoid(score_N + by).mean()) - right, low - 1, high + 1)
    return float(losses_at(score_N + moved, label_N).mean())


def _factor(square: Array, jitter: float) -> Array:
    """Return the upper Cholesky factor of a matrix with a little added to its diagonal."""
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


@functools.cache
def _threads() -> Any:
    """Return what limits threads: to find the libraries takes longer than a small fit."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def _landmarks(count: int) -> Array:
    """Return the rows that span the weights: all, or `LANDMARKS` of them at random."""
    drawn: Array = np.random.default_rng(0).permutation(count)[:LANDMARKS]
    return np.arange(count) if count <= LANDMARKS else np.sort(drawn)


def _scale(block_ND: Array) -> Array:
    """Return the divisors of a block: standard deviations times the square root of its width."""
    spread_D = block_ND.std(0, dtype=np.float64)
    flat_D = spread_D <= 1e-6 * max(float(spread_D.max(initial=0)), 1e-12)
    scale_D: Array = np.where(flat_D, np.inf, spread_D) * np.sqrt(block_ND.shape[1])
    return scale_D
