"""Thresholds for votes that stop, from stored samples.

A threshold that is fitted on single samples does not hold for early stopping, which answers with
the first of several samples that reaches it. So it is fitted on the decisions of the vote, with
the samples in the order in which they were stored.

Shapes: Q questions, G thresholds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from grace.scaling.pool import Pool
from grace.scaling.replaying import Outcome, is_right, outcomes
from grace.strategies import EarlyStop, FittedVote, Strategy
from grace.strategies.tally import Floats, Indices, VoteTable
from grace.thresholds import GRID, AccuracyGuarantee, guarantee

Truths = NDArray[np.bool_]
Rule = Callable[[float], Strategy]  # the vote that stops at a threshold


def accuracy_threshold(
    pool: Pool,
    target: float,
    *,
    budget: int,
    delta: float = 0.05,
    estimator: str = "grace",
    grid: Sequence[float] = GRID,
    drop: float = 0.0,
    rule: Rule = EarlyStop,
) -> AccuracyGuarantee:
    """Choose tau for a vote so that at least `target` of the answers it gives are right.

    `rule` makes the vote that answers at tau, by default early stopping; what is fitted in it must
    come from other questions.
    """
    votes = pool.dropped(drop, budget) if drop else pool
    answered_GQ, right_GQ = early_stops(votes, budget, estimator, grid, rule)
    accepted_G, right_G = answered_GQ.sum(axis=1), right_GQ.sum(axis=1)
    n = pool.num_questions
    return guarantee(accepted_G, right_G, n, target=target, delta=delta, grid=grid)


def early_stops(
    pool: Pool,
    budget: int,
    estimator: str,
    grid: Sequence[float] = GRID,
    rule: Rule = EarlyStop,
) -> tuple[Truths, Truths]:
    """Return whether each question is answered, and answered right, at each threshold: (G, Q).

    A question is answered if the vote stops within its first `budget` samples.
    """
    pool.check_budgets([budget])
    table = VoteTable(pool.answer_QS[:, :budget], pool.confidence(estimator)[:, :budget])
    correct_QT = pool.correct_QS[:, :budget]
    by_threshold = []
    leading: dict[tuple[float, ...], tuple[Indices, Floats]] = {}
    for tau in grid:
        strategy = rule(tau)
        if isinstance(strategy, FittedVote):  # which answer leads does not depend on the threshold
            if strategy.weights not in leading:
                leading[strategy.weights] = strategy.leading(table)
            chosen_QT, sure_QT = leading[strategy.weights]
            stop_Q = strategy.stop(chosen_QT, sure_QT)
            used_Q = np.minimum(stop_Q, budget)
            outcome = Outcome(chosen_QT[np.arange(len(used_Q)), used_Q - 1], used_Q)
        else:
            (outcome,) = outcomes(strategy, table, [budget])
            stop_Q = strategy.stops(table)
        answered_Q = stop_Q <= budget
        by_threshold.append((answered_Q, answered_Q & is_right(outcome, correct_QT)))
    answered_GQ, right_GQ = map(np.array, zip(*by_threshold, strict=True))
    return answered_GQ, right_GQ
