"""Thresholds for early stopping, from stored samples.

A threshold fitted on single samples does not carry over to early stopping, which answers with the
first of several samples that reaches it. So it is fitted on what early stopping does, with the
samples in the order in which they were stored.

Shapes: Q questions, G thresholds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from grace.scaling.pool import Pool, first_seen
from grace.scaling.replaying import is_right, outcomes
from grace.strategies import EarlyStop, Majority
from grace.strategies.tally import VoteTable
from grace.thresholds import (
    GRID,
    AccuracyGuarantee,
    Accurate,
    NoWorse,
    NoWorseGuarantee,
)

Goal = Accurate | NoWorse
Truths = NDArray[np.bool_]


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
    left = pool.dropped(drop, budget) if drop else pool
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


def _stored(pool: Pool, budget: int, estimator: str | None) -> tuple[VoteTable, Truths]:
    pool.check_budgets([budget])
    answer_QT = first_seen(pool.answer_QS[:, :budget])
    table = VoteTable(answer_QT, pool.confidence(estimator)[:, :budget])
    return table, pool.correct_QS[:, :budget]
