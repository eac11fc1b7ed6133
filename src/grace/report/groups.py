"""The rows of a report in the groups that tables and figures show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from grace.report.names import estimator_order, shown_budget, strategy_name
from grace.report.rows import (
    Comparison,
    EqualAccuracy,
    MetricRow,
    Report,
    StrategyRow,
    Summary,
    Transfer,
    group_by,
)

Difference = TypeVar("Difference", Comparison, Transfer)
BudgetCurve = list[StrategyRow]
"""One strategy at all its budgets, the smallest first."""


class Group(NamedTuple):
    """The estimators of one test task, training task and backbone."""

    title: str
    rated: list[Summary]
    rows: list[MetricRow]  # theirs, seed by seed

    @property
    def in_domain(self) -> bool:
        """Whether the tested task is the one that was trained on."""
        return self.rated[0].task == self.rated[0].train_task


def groups(report: Report) -> list[Group]:
    """Return the groups of a report, in-domain ones first, each with its estimators in order."""
    by_place = group_by(report.summaries, lambda entry: entry.place)
    rows_of = group_by(report.rows, lambda row: row.place)
    several = len({backbone for _, _, backbone in by_place}) > 1
    ordered = []
    for place in sorted(by_place, key=lambda place: (place[0] != place[1], place)):
        task, train_task, backbone = place
        title = task if task == train_task else f"{task} (trained on {train_task})"
        rated = sorted(by_place[place], key=lambda entry: estimator_order(entry.estimator))
        rows = sorted(rows_of[place], key=lambda row: estimator_order(row.estimator))
        ordered.append(Group(f"{title}, {backbone}" if several else title, rated, rows))
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
