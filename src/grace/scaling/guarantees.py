"""Thresholds for early stopping, from stored samples, and how often their guarantees are false.

A threshold fitted on single samples does not carry over to early stopping, which answers with the
first of several samples that reaches it. So it is fitted on what early stopping does, with the
samples in the order in which they were stored.

Shapes: Q questions, G thresholds, D parts of the questions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grace.scaling.pool import Pool, first_seen
from grace.scaling.replaying import is_right, outcomes
from grace.strategies import EarlyStop, Majority
from grace.strategies.tally import Floats, Indices, VoteTable
from grace.thresholds import (
    GRID,
    AccuracyGuarantee,
    Accurate,
    NoWorse,
    NoWorseGuarantee,
    few_dropped,
)

DELTAS = (0.05, 0.1, 0.2)
Goal = Accurate | NoWorse
Truths = NDArray[np.bool_]


class BrokenPromises(NamedTuple):
    """What became of the guarantees made on random parts of a pool, as shares of the parts.

    `promised`: a threshold was found. `broken`: it was, and over the whole pool, from which the
    part was drawn, the guarantee is false: this is what delta bounds. `broken_on_rest`: the same
    over the other part alone, whose own noise comes on top. `coverage` is the mean share of
    questions answered over the whole pool, 0 where nothing was guaranteed.
    """

    delta: float
    splits: int
    promised: float
    broken: float
    broken_on_rest: float
    coverage: float


def accuracy_threshold(
    pool: Pool,
    target: float,
    *,
    budget: int,
    delta: float = 0.05,
    abstain: bool = True,
    estimator: str = "grace",
    grid: Sequence[float] = GRID,
    drop: float = 0.0,
) -> AccuracyGuarantee:
    """Choose tau for early stopping so that at least `target` of the answers it gives are right.

    Args:
        pool: samples of the calibration questions, drawn at the temperature of use.
        target: wanted accuracy of the answers that are given, in (0, 1).
        budget: most samples per question; 1 is selective answering.
        delta: accepted probability that the guarantee is false, in (0, 1).
        abstain: answer only when a sample reaches tau; else vote when none does, always answer.
        estimator: whose confidences.
        grid: thresholds from strict to loose, chosen without looking at these data.
        drop: samples whose confidence falls below this are aborted.

    Raises:
        UserInputError: an impossible target, delta, budget or grid, or missing confidences.
    """
    goal = Accurate(target, abstain)
    one_GQ, two_GQ = tables(pool, goal, budget, estimator, grid, drop)
    return goal.guarantee(
        one_GQ.sum(axis=1), two_GQ.sum(axis=1), pool.num_questions, delta=delta, grid=grid
    )


def no_worse_threshold(
    pool: Pool,
    *,
    budget: int,
    margin: float = 0.0,
    delta: float = 0.05,
    estimator: str = "grace",
    grid: Sequence[float] = GRID,
    drop: float = 0.0,
) -> NoWorseGuarantee:
    """Choose tau for early stopping so that it is at most `margin` less accurate than SC.

    The arguments are those of `accuracy_threshold`; SC has the same budget and drops nothing.

    Raises:
        UserInputError: an impossible margin, delta, budget or grid, or missing confidences.
    """
    goal = NoWorse(margin)
    one_GQ, two_GQ = tables(pool, goal, budget, estimator, grid, drop)
    return goal.guarantee(
        one_GQ.sum(axis=1), two_GQ.sum(axis=1), pool.num_questions, delta=delta, grid=grid
    )


def broken_promises(
    pool: Pool,
    goal: Goal,
    *,
    budget: int,
    deltas: Sequence[float] = DELTAS,
    estimator: str = "grace",
    grid: Sequence[float] = GRID,
    splits: int = 1000,
    share: float = 0.5,
    seed: int = 0,
) -> list[BrokenPromises]:
    """Choose thresholds on many random parts of a pool, and check what each guarantees.

    Args:
        pool: samples of all questions; each part of it is a draw of calibration data.
        goal: what is guaranteed.
        budget: most samples per question; 1 is selective answering.
        deltas: accepted probabilities that the guarantee is false, in (0, 1); one result each.
        estimator: whose confidences.
        grid: thresholds from strict to loose, chosen without looking at these data.
        splits: how many random parts.
        share: questions in each part, as a share of the pool.
        seed: seed of the parts.

    Raises:
        UserInputError: as for `accuracy_threshold` and `no_worse_threshold`.
    """
    one_GQ, two_GQ = tables(pool, goal, budget, estimator, grid)
    part_DQ = random_parts(pool.num_questions, splits, share, seed)
    n, size = pool.num_questions, int(part_DQ[0].sum())
    one_DG, two_DG = _counts(part_DQ, one_GQ), _counts(part_DQ, two_GQ)
    one_G, two_G = one_GQ.sum(axis=1), two_GQ.sum(axis=1)
    broken_G, coverage_G = goal.broken(one_G, two_G, n), goal.coverage(one_G, n)
    on_rest_DG = goal.broken(one_G - one_DG, two_G - two_DG, n - size)
    return [
        _summary(delta, goal.pick(one_DG, two_DG, size, delta), broken_G, on_rest_DG, coverage_G)
        for delta in deltas
    ]


def broken_drops(
    pool: Pool, alpha: float, *, delta: float, splits: int = 1000, seed: int = 0
) -> float:
    """Return how often thresholds chosen on random halves drop more right samples than promised.

    They are checked on the whole pool, from which the halves were drawn: delta bounds the share.
    """
    part_DQ = random_parts(pool.num_questions, splits, 0.5, seed).astype(bool)
    right_Q = pool.correct_QS[:, 0]
    low_Q = np.full(pool.num_questions, np.nan)
    low_Q[right_Q] = low_N = pool.lowest_right()
    chosen = [few_dropped(low_Q[part_Q & right_Q], alpha, delta).drop for part_Q in part_DQ]
    return float(np.mean([(low_N < drop).mean() > alpha for drop in chosen]))


def tables(
    pool: Pool,
    goal: Goal,
    budget: int,
    estimator: str,
    grid: Sequence[float],
    drop: float = 0.0,
) -> tuple[Truths, Truths]:
    """Return, for every threshold and question, what a goal counts: (G, Q).

    Of `Accurate` whether the question is answered, and answered right; of `NoWorse` whether early
    stopping alone is right, and whether SC alone is.
    """
    left = pool.dropped(drop)
    if isinstance(goal, Accurate):
        return early_stops(left, budget, goal.abstain, estimator, grid)
    _, right_GQ = early_stops(left, budget, False, estimator, grid)
    baseline_Q = majority_right(pool, budget)
    return right_GQ & ~baseline_Q, ~right_GQ & baseline_Q


def early_stops(
    pool: Pool, budget: int, abstain: bool, estimator: str, grid: Sequence[float] = GRID
) -> tuple[Truths, Truths]:
    """Return, for every threshold and question, whether it is answered and answered right: (G, Q).

    Raises:
        UserInputError: the pool has fewer samples than the budget, or none of the confidences.
    """
    table, correct_QT = _stored(pool, budget, estimator)
    found = []
    for tau in grid:
        strategy = EarlyStop(tau)
        (outcome,) = outcomes(strategy, table, [budget])
        answered_Q = strategy.stops(table) <= budget if abstain else np.ones(len(table[0]), bool)
        found.append((answered_Q, answered_Q & is_right(outcome, correct_QT)))
    answered, right = zip(*found, strict=True)
    return np.array(answered), np.array(right)


def majority_right(pool: Pool, budget: int) -> Truths:
    """Return whether SC answers each question right, with the samples as they were stored."""
    table, correct_QT = _stored(pool, budget, None)
    (outcome,) = outcomes(Majority(), table, [budget])
    return is_right(outcome, correct_QT)


def random_parts(count: int, splits: int, share: float, seed: int) -> NDArray[np.float32]:
    """Return random parts of the questions as rows of 0 and 1: (D, Q)."""
    size = min(max(1, round(share * count)), count - 1)
    first = np.broadcast_to(np.arange(count) < size, (splits, count))
    return np.random.default_rng(seed).permuted(first, axis=1).astype(np.float32)


def _stored(pool: Pool, budget: int, estimator: str | None) -> tuple[VoteTable, Truths]:
    pool.check_budgets([budget])
    answer_QT = first_seen(pool.answer_QS[:, :budget])
    table = VoteTable(answer_QT, pool.confidence(estimator)[:, :budget])
    return table, pool.correct_QS[:, :budget]


def _counts(part_DQ: NDArray[np.float32], true_GQ: Truths) -> Indices:
    """Return how many questions of each part are true at each threshold: (D, G)."""
    counts: Indices = (part_DQ @ true_GQ.T.astype(np.float32)).astype(np.intp)
    return counts


def _summary(
    delta: float, picked_D: Indices, broken_G: Truths, on_rest_DG: Truths, coverage_G: Floats
) -> BrokenPromises:
    found_D = picked_D >= 0
    on_rest_D = on_rest_DG[np.arange(len(picked_D)), picked_D]
    return BrokenPromises(
        delta=delta,
        splits=len(picked_D),
        promised=float(found_D.mean()),
        broken=float((found_D & broken_G[picked_D]).mean()),
        broken_on_rest=float((found_D & on_rest_D).mean()),
        coverage=float((found_D * coverage_G[picked_D]).mean()),
    )
