"""Thresholds for early stopping, from stored samples.

A threshold fitted on single samples does not carry over to early stopping, which answers with the
first of several samples that reaches it. So it is fitted on what early stopping does, with the
samples in the order in which they were stored.

Shapes: Q questions, G thresholds.
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
    AccuracyPromise,
    NoWorsePromise,
    pick_accurate,
    pick_no_worse,
    promise_accuracy,
    promise_no_worse,
)

Truths = NDArray[np.bool_]


class Accurate(NamedTuple):
    """What to promise: at least `target` of the answers that are given are right.

    With `abstain` one is given only when a sample reaches tau; else it is voted for when none does.
    """

    target: float
    abstain: bool = True

    def tables(
        self, pool: Pool, budget: int, estimator: str, grid: Sequence[float]
    ) -> tuple[Truths, Truths]:
        """Return, for every threshold and question, whether it is answered, and right: (G, Q)."""
        return early_stops(pool, budget, self.abstain, estimator, grid)

    def pick(self, answered_DG: Indices, right_DG: Indices, n: int, delta: float) -> Indices:
        """Return the threshold chosen with each draw of n questions, -1 for none."""
        return pick_accurate(answered_DG, right_DG, n, self.target, delta, self.abstain)

    def broken(self, answered: Indices, right: Indices, n: int) -> Truths:
        """Return whether the promise is false of n questions with these counts."""
        return right < self.target * answered

    def coverage(self, answered_G: Indices, n: int) -> Floats:
        """Return the share of n questions that is answered at each threshold."""
        return answered_G / n


class NoWorse(NamedTuple):
    """What to promise: early stopping is at most `margin` less accurate than SC."""

    margin: float = 0.0

    def tables(
        self, pool: Pool, budget: int, estimator: str, grid: Sequence[float]
    ) -> tuple[Truths, Truths]:
        """Return, for every threshold and question, whether it alone, or SC alone, is right."""
        _, right_GQ = early_stops(pool, budget, False, estimator, grid)
        baseline_Q = majority_right(pool, budget)
        return right_GQ & ~baseline_Q, ~right_GQ & baseline_Q

    def pick(self, better_DG: Indices, worse_DG: Indices, n: int, delta: float) -> Indices:
        """Return the threshold chosen with each draw of n questions, -1 for none."""
        return pick_no_worse(better_DG, worse_DG, n, self.margin, delta)

    def broken(self, better: Indices, worse: Indices, n: int) -> Truths:
        """Return whether the promise is false of n questions with these counts."""
        return better - worse < -self.margin * n

    def coverage(self, better_G: Indices, n: int) -> Floats:
        """Return the share of n questions that is answered at each threshold: all of them."""
        return np.ones(len(better_G))


def accuracy_threshold(
    pool: Pool,
    target: float,
    *,
    budget: int,
    delta: float = 0.05,
    abstain: bool = True,
    estimator: str = "grace",
    grid: Sequence[float] = GRID,
) -> AccuracyPromise:
    """Choose tau for early stopping so that at least `target` of the answers it gives are right.

    Args:
        pool: samples of the calibration questions, drawn at the temperature of use.
        target: wanted accuracy of the answers that are given, in (0, 1).
        budget: most samples per question; 1 is selective answering.
        delta: accepted probability that the promise is broken, in (0, 1).
        abstain: answer only when a sample reaches tau; else vote when none does, always answer.
        estimator: whose confidences.
        grid: thresholds from strict to loose, chosen without looking at these data.

    Raises:
        UserInputError: an impossible target, delta, budget or grid, or missing confidences.
    """
    answered_GQ, right_GQ = Accurate(target, abstain).tables(pool, budget, estimator, grid)
    return promise_accuracy(
        answered_GQ.sum(axis=1),
        right_GQ.sum(axis=1),
        pool.num_questions,
        target=target,
        delta=delta,
        grid=grid,
        abstains=abstain,
    )


def no_worse_threshold(
    pool: Pool,
    *,
    budget: int,
    margin: float = 0.0,
    delta: float = 0.05,
    estimator: str = "grace",
    grid: Sequence[float] = GRID,
) -> NoWorsePromise:
    """Choose tau for early stopping so that it is at most `margin` less accurate than SC.

    Args:
        pool: samples of the calibration questions, drawn at the temperature of use.
        budget: most samples per question, of both.
        margin: accepted loss of accuracy, in [0, 1).
        delta: accepted probability that the promise is broken, in (0, 1).
        estimator: whose confidences.
        grid: thresholds from strict to loose, chosen without looking at these data.

    Raises:
        UserInputError: an impossible margin, delta, budget or grid, or missing confidences.
    """
    better_GQ, worse_GQ = NoWorse(margin).tables(pool, budget, estimator, grid)
    return promise_no_worse(
        better_GQ.sum(axis=1),
        worse_GQ.sum(axis=1),
        pool.num_questions,
        margin=margin,
        delta=delta,
        grid=grid,
    )


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
