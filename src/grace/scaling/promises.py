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
    AccuracyPromise,
    NoWorsePromise,
    promise_accuracy,
    promise_no_worse,
)

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
    answered_GQ, right_GQ = early_stops(pool, budget, abstain, estimator, grid)
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
    _, right_GQ = early_stops(pool, budget, False, estimator, grid)
    baseline_Q = majority_right(pool, budget)
    better_G = (right_GQ & ~baseline_Q).sum(axis=1)
    worse_G = (~right_GQ & baseline_Q).sum(axis=1)
    return promise_no_worse(
        better_G, worse_G, pool.num_questions, margin=margin, delta=delta, grid=grid
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
