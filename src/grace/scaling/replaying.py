"""The replay: every policy at every budget on the same orders of the same samples.

Shapes: Q questions, S samples, B budgets, R rows (a question in one order), T votes per row, G
thresholds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grace.errors import UserInputError
from grace.scaling.pool import Pool
from grace.scaling.results import Curve, Scaling
from grace.strategies import POLICIES, EarlyStop, FittedVote, Policy, Strategy, policy
from grace.strategies.deciding import check_count, named
from grace.strategies.tally import Floats, Indices, VoteTable
from grace.thresholds import GRID, AccuracyGuarantee, counted, guarantee

BUDGETS = (1, 2, 4, 8, 16, 32)
_ROWS = 8_192
"""Rows that are decided at once, so that they stay in the processor's cache."""


class Outcome(NamedTuple):
    """The decision on each row: the position of the answer (-1: none) and the number of votes."""

    chosen_R: Indices
    used_R: Indices


def replay(
    pool: Pool,
    policies: Iterable[str | Policy] = POLICIES,
    *,
    budgets: Sequence[int] = BUDGETS,
    orders: int = 50,
    seed: int = 0,
) -> Scaling:
    """Compute accuracy, samples and tokens of every policy at every budget.

    Every policy and budget sees the same orders, so their differences are paired. The chosen
    answer is right if the first sample with that answer is right; no answer counts as wrong.
    """
    pool.check_budgets(budgets)
    check_count(orders, "orders")
    budgets = sorted(set(budgets))
    named = [policy(each) if isinstance(each, str) else each for each in policies]
    if not named:
        raise UserInputError("there is no strategy to replay; name some, such as sc and grace-es")
    sums = [_Sums(each, pool, budgets) for each in named]
    for question_R, sample_RT in _rows(pool, orders, seed, max(budgets)):
        votes = pool.take(question_R, sample_RT)
        tokens_RT = votes.tokens_QS.cumsum(axis=1)
        for each in sums:
            table = VoteTable(votes.answer_QS, votes.confidence(each.policy.estimator))
            decided = outcomes(each.policy.strategy, table, budgets)
            for budget, outcome in zip(budgets, decided, strict=True):
                each.add(budget, question_R, outcome, votes.correct_QS, tokens_RT)
    return Scaling([[each.curve(orders) for each in sums]])


def outcomes(strategy: Strategy, table: VoteTable, budgets: Sequence[int]) -> Iterator[Outcome]:
    """Yield the decisions on every row at each budget, as `decide` would take them."""
    with named(strategy):
        stop_R = strategy.stops(table)
    for budget in budgets:
        used_R = np.minimum(stop_R, budget)
        with named(strategy):
            chosen_R = strategy.chooses(table.until(used_R, budget))
        yield Outcome(chosen_R, used_R)


def is_right(outcome: Outcome, correct_RT: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return whether the chosen answer of each row is right: (R,)."""
    chosen_R = outcome.chosen_R
    return (chosen_R >= 0) & correct_RT[np.arange(len(chosen_R)), chosen_R]


class _Sums:
    """Sums of the outcomes of one policy over orders, question by question."""

    def __init__(self, policy: Policy, pool: Pool, budgets: Sequence[int]) -> None:
        self.policy = policy
        self._budgets = tuple(budgets)
        self._sum_BMQ = np.zeros((len(budgets), 3, pool.num_questions))
        self._used_BV = np.zeros((len(budgets), max(budgets) + 1))

    def add(
        self,
        budget: int,
        question_R: Indices,
        outcome: Outcome,
        correct_RT: NDArray[np.bool_],
        tokens_RT: Indices,
    ) -> None:
        at, used_R = self._budgets.index(budget), outcome.used_R
        tokens_R = tokens_RT[np.arange(len(used_R)), used_R - 1]
        for measure, value_R in enumerate((is_right(outcome, correct_RT), used_R, tokens_R)):
            added = np.bincount(question_R, value_R, minlength=self._sum_BMQ.shape[2])
            self._sum_BMQ[at, measure] += added
        self._used_BV[at] += np.bincount(used_R, minlength=self._used_BV.shape[1])

    def curve(self, orders: int) -> Curve:
        value_MBQ = self._sum_BMQ.swapaxes(0, 1) / orders
        used_BV: Floats = self._used_BV / self._used_BV.sum(axis=1, keepdims=True)
        threshold = getattr(self.policy.strategy, "threshold", None)
        about = (self.policy.name, self.policy.estimator, threshold, self._budgets)
        return Curve(*about, value_MBQ, used_BV)


def _rows(pool: Pool, orders: int, seed: int, width: int) -> Iterator[tuple[Indices, Indices]]:
    """Yield (questions (R,), samples (R, width)) that index the pool, a block at a time."""
    shuffles = pool.orders(orders, seed)
    while block := list(islice(shuffles, max(1, _ROWS // pool.num_questions))):
        questions = np.tile(np.arange(pool.num_questions), len(block))
        samples = np.concatenate([order[:, :width] for order in block])
        for start in range(0, len(samples), _ROWS):
            yield questions[start : start + _ROWS], samples[start : start + _ROWS]


# --- thresholds for votes that stop, from stored samples

# A threshold that is fitted on single samples does not hold for early stopping, which answers with
# the first of several samples that reaches it. So it is fitted on the decisions of the vote, with
# the samples in the order in which they were stored.

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
    rule: Rule = EarlyStop,
    sources: Sequence[str] | None = None,
) -> AccuracyGuarantee:
    """Choose tau for a vote so that at least `target` of the answers it gives are right.

    `rule` makes the vote that answers at tau, by default early stopping; what is fitted in it must
    come from other questions. With the `sources` of the questions the guarantee holds in each.
    """
    answered_GQ, right_GQ = early_stops(pool, budget, estimator, grid, rule)

    def count(rows: Any) -> tuple[Indices, Indices]:
        return answered_GQ[:, rows].sum(axis=1), right_GQ[:, rows].sum(axis=1)

    parts = counted(count, pool.num_questions, sources)
    return guarantee(parts, target=target, delta=delta, grid=grid)


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
