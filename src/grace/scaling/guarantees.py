"""Thresholds for early stopping, from stored samples.

A threshold that is fitted on single samples does not hold for early stopping, which answers with
the first of several samples that reaches it. So it is fitted on the decisions of early stopping,
with the samples in the order in which they were stored.

Shapes: Q questions, G thresholds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from grace.scaling.pool import Pool
from grace.scaling.replaying import is_right, outcomes
from grace.strategies import EarlyStop
from grace.strategies.tally import VoteTable
from grace.thresholds import GRID, AccuracyGuarantee, guarantee

Truths = NDArray[np.bool_]


def accuracy_threshold(
    pool: Pool,
    target: float,
    *,
    budget: int,
    delta: float = 0.05,
    estimator: str = "grace",
    grid: Sequence[float] = GRID,
    drop: float = 0.0,
) -> AccuracyGuarantee:
    """Choose tau for early stopping so that at least `target` of the answers it gives are right."""
    votes = pool.dropped(drop, budget) if drop else pool
    answered_GQ, right_GQ = early_stops(votes, budget, estimator, grid)
    accepted_G, right_G = answered_GQ.sum(axis=1), right_GQ.sum(axis=1)
    n = pool.num_questions
    return guarantee(accepted_G, right_G, n, target=target, delta=delta, grid=grid)


def early_stops(
    pool: Pool, budget: int, estimator: str, grid: Sequence[float] = GRID
) -> tuple[Truths, Truths]:
    """Return whether each question is answered, and answered right, at each threshold: (G, Q).

    A question is answered if one of its first `budget` samples reaches the threshold.
    """
    pool.check_budgets([budget])
    table = VoteTable(pool.answer_QS[:, :budget], pool.confidence(estimator)[:, :budget])
    correct_QT = pool.correct_QS[:, :budget]
    by_threshold = []
    for tau in grid:
        strategy = EarlyStop(tau)
        (outcome,) = outcomes(strategy, table, [budget])
        answered_Q = strategy.stops(table) <= budget
        by_threshold.append((answered_Q, answered_Q & is_right(outcome, correct_QT)))
    answered_GQ, right_GQ = map(np.array, zip(*by_threshold, strict=True))
    return answered_GQ, right_GQ
