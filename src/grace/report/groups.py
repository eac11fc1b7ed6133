"""The rows of a report in the groups that tables and figures show."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from grace.metrics import Bar
from grace.report.names import estimator_order, label, shown_budget, strategy_name
from grace.report.rows import (
    Comparison,
    EqualAccuracy,
    Gap,
    Interval,
    MetricRow,
    Report,
    StrategyRow,
    Summary,
    Transfer,
    group_by,
    mean_of,
)

Difference = TypeVar("Difference", Comparison, Transfer)
BudgetCurve = list[StrategyRow]
"""One strategy at all its budgets, the smallest first."""


class Rated(NamedTuple):
    """One estimator in a group: its rows, one per seed, and their summary."""

    rows: tuple[MetricRow, ...]
    summary: Summary

    @property
    def estimator(self) -> str:
        """The name of the estimator."""
        return self.rows[0].estimator

    @property
    def label(self) -> str:
        """The label of the estimator."""
        return label(self.estimator)

    @property
    def num_answers(self) -> int:
        """The number of responses with a confidence, over all seeds."""
        return sum(row.n for row in self.rows)

    @property
    def num_missing(self) -> int:
        """The number of responses without a confidence, over all seeds."""
        return sum(row.missing for row in self.rows)

    def mean(self, metric: str) -> float | None:
        """Return the mean of a metric over the seeds."""
        return mean_of(self._values(metric))

    def spread(self, metric: str) -> float | None:
        """Return the standard deviation of a metric over the seeds, None for a single one."""
        values = self._values(metric)
        return statistics.stdev(values) if len(values) > 1 else None

    def interval(self, metric: str) -> Interval | None:
        """Return the interval of the mean."""
        return self.summary.interval.get(metric)

    def mark(self, metric: str) -> str:
        """Return "best", "tied", "second", "tied second" or ""."""
        return self.summary.mark.get(metric) or ""

    def gap(self, metric: str) -> Gap | None:
        """Return the distance to the leader."""
        return self.summary.to_leader.get(metric)

    def cost(self, name: str) -> float | str | None:
        """Return the mean of a cost over the seeds; of a text, the first."""
        costs = self._values(name)
        return costs[0] if costs and isinstance(costs[0], str) else mean_of(costs)

    def _values(self, field: str) -> list[Any]:
        return [value for row in self.rows if (value := getattr(row, field)) is not None]


def pooled_bars(rated: Rated) -> list[Bar]:
    """Return the bars of a reliability diagram, pooled over the seeds, without empty ones."""
    bars = []
    for parts in zip(*(row.reliability for row in rated.rows if row.n), strict=True):
        n = sum(part.n for part in parts)
        if n:
            confidence = sum(part.n * (part.confidence or 0.0) for part in parts) / n
            accuracy = sum(part.n * (part.accuracy or 0.0) for part in parts) / n
            low, high = parts[0].low, parts[0].high
            bars.append(Bar(low, high, n, confidence, accuracy))
    return bars


class Group(NamedTuple):
    """The estimators of one test task, training task and backbone."""

    title: str
    rated: list[Rated]

    @property
    def in_domain(self) -> bool:
        """Whether the tested task is the one that was trained on."""
        row = self.rated[0].rows[0]
        return row.task == row.train_task


def groups(report: Report) -> list[Group]:
    """Return the groups of a report, in-domain ones first, each with its estimators in order."""
    by_place = group_by(report.rows, lambda row: row.place)
    several = len({backbone for _, _, backbone in by_place}) > 1
    summaries = {(entry.place, entry.estimator): entry for entry in report.summaries}
    ordered = []
    for place in sorted(by_place, key=lambda place: (place[0] != place[1], place)):
        task, train_task, backbone = place
        title = task if task == train_task else f"{task} (trained on {train_task})"
        by_name = group_by(by_place[place], lambda row: row.estimator)
        rated = [
            Rated(tuple(by_name[name]), summaries[place, name])
            for name in sorted(by_name, key=estimator_order)
        ]
        ordered.append(Group(f"{title}, {backbone}" if several else title, rated))
    return ordered


def comparisons(report: Report) -> list[dict[str, Comparison]]:
    """Return the comparisons with each other estimator, by metric."""
    return _by_metric(report.comparisons, lambda row: row.b)


def transfers(report: Report) -> list[dict[str, Transfer]]:
    """Return the differences that training on another task makes to each estimator, by metric."""
    return _by_metric(report.transfer, lambda row: row.estimator)


def _by_metric(
    rows: Sequence[Difference], name: Callable[[Difference], str]
) -> list[dict[str, Difference]]:
    by_key = group_by(rows, lambda row: (row.place, row.seed or 0, estimator_order(name(row))))
    return [{row.metric: row for row in by_key[key]} for key in sorted(by_key)]


def curves(report: Report) -> dict[tuple[str, str], list[BudgetCurve]]:
    """Return the curves of each (task, backbone), in the order of the report."""
    return {
        place: [
            sorted(curve, key=lambda row: row.budget)
            for curve in group_by(rows, lambda row: row.strategy).values()
        ]
        for place, rows in group_by(report.scaling_joint, lambda row: row.place).items()
    }


def at_budget(curves: Sequence[BudgetCurve]) -> list[StrategyRow]:
    """Return the row of each curve at the budget that tables show."""
    budget = shown_budget(row.budget for curve in curves for row in curve)
    return [row for curve in curves for row in curve if row.budget == budget]


def name_of(row: StrategyRow | EqualAccuracy, *, whose: bool = True) -> str:
    """Return the label of the strategy of a row; see `strategy_name`."""
    return strategy_name(row.strategy, row.estimator, row.threshold, whose=whose)
