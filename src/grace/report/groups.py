"""A report as tables and figures show it: by task, and of each estimator its seeds together."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from grace.report.names import estimator_order, label, shown_budget, strategy_name
from grace.report.rows import Bar, Comparison, Ends, Gap, MetricRow, Summary, Transfer
from grace.report.scaling.rows import EqualAccuracy, JointStrategy
from grace.report.stored import Report

Changes = TypeVar("Changes", Comparison, Transfer)


class Rated(NamedTuple):
    """One estimator in a group: its rows, one per seed, and what they say together.

    Without a summary (a row alone, or an older file) a single seed keeps its own intervals,
    several have none, and nothing is marked.
    """

    rows: tuple[MetricRow, ...]
    summary: Summary | None = None

    @property
    def estimator(self) -> str:
        """Its name in the rows."""
        return self.rows[0].estimator

    @property
    def label(self) -> str:
        """Its name for people."""
        return label(self.estimator)

    @property
    def num_answers(self) -> int:
        """Number of responses with a confidence, over all seeds."""
        return sum(row.n for row in self.rows)

    @property
    def num_missing(self) -> int:
        """Number of responses without a confidence, over all seeds."""
        return sum(row.missing for row in self.rows)

    def mean(self, metric: str) -> float | None:
        """Return the mean of a metric over the seeds."""
        known = self._known(metric)
        return statistics.fmean(known) if known else None

    def spread(self, metric: str) -> float | None:
        """Return the standard deviation of a metric over the seeds, if there are several."""
        known = self._known(metric)
        return statistics.stdev(known) if len(known) > 1 else None

    def interval(self, metric: str) -> Ends | None:
        """Return the interval of the mean."""
        if self.summary is not None:
            return self.summary.interval.get(metric)
        return self.rows[0].interval.get(metric) if len(self.rows) == 1 else None

    def mark(self, metric: str) -> str:
        """Return "best", "tied", "second", "tied second" or nothing."""
        return (self.summary and self.summary.mark.get(metric)) or ""

    def gap(self, metric: str) -> Gap | None:
        """Return the distance to the leader."""
        return self.summary.to_leader.get(metric) if self.summary else None

    def cost(self, name: str) -> float | str | None:
        """Return the mean of a cost over the seeds."""
        known = [cost for row in self.rows if (cost := row.cost(name)) is not None]
        numbers = [cost for cost in known if not isinstance(cost, str)]
        return statistics.fmean(numbers) if numbers else known[0] if known else None

    def _known(self, metric: str) -> list[float]:
        return [value for row in self.rows if (value := row.metric(metric)) is not None]


def pooled_bars(rated: Rated) -> list[Bar]:
    """Return the bars that are not empty, each pooled over the seeds."""
    bars = []
    for parts in zip(*(row.reliability for row in rated.rows if row.n), strict=True):
        n = sum(part.n for part in parts)
        if n:
            confidence = sum(part.n * (part.confidence or 0.0) for part in parts) / n
            accuracy = sum(part.n * (part.accuracy or 0.0) for part in parts) / n
            about = {"low": parts[0].low, "high": parts[0].high, "n": n}
            bars.append(Bar(**about, confidence=confidence, accuracy=accuracy))
    return bars


class Group(NamedTuple):
    """The estimators of one test task, training task and backbone."""

    title: str
    rated: list[Rated]

    @property
    def at_home(self) -> bool:
        """True where the tested task is the one that was trained on."""
        row = self.rated[0].rows[0]
        return row.task == row.train_task


def groups(report: Report) -> list[Group]:
    """Return the groups of a report, in-domain ones first, each with its estimators in order."""
    by_place: dict[tuple[str, str, str], dict[str, list[MetricRow]]] = {}
    for row in report.rows:
        by_place.setdefault(row.place, {}).setdefault(row.estimator, []).append(row)
    several = len({backbone for _, _, backbone in by_place}) > 1
    joint = {(entry.place, entry.estimator): entry for entry in report.summaries}
    found = []
    for place in sorted(by_place, key=lambda place: (place[0] != place[1], place)):
        task, train_task, backbone = place
        title = task if task == train_task else f"{task} (trained on {train_task})"
        rated = [
            Rated(tuple(by_place[place][name]), joint.get((place, name)))
            for name in sorted(by_place[place], key=estimator_order)
        ]
        found.append(Group(f"{title}, {backbone}" if several else title, rated))
    return found


def comparisons(report: Report) -> list[dict[str, Comparison]]:
    """Return the comparisons with one other estimator together, by metric."""
    return _by_metric([(row.b, row) for row in report.comparisons])


def transfers(report: Report) -> list[dict[str, Transfer]]:
    """Return the changes of each estimator when trained on another task, by metric."""
    return _by_metric([(row.estimator, row) for row in report.transfer])


def _by_metric(rows: Sequence[tuple[str, Changes]]) -> list[dict[str, Changes]]:
    found: dict[tuple[tuple[str, str, str], int, tuple[int, str]], dict[str, Changes]] = {}
    for estimator, row in rows:
        about = (row.place, row.seed or 0, estimator_order(estimator))
        found.setdefault(about, {})[row.metric] = row
    return [found[about] for about in sorted(found)]


class BudgetCurve(NamedTuple):
    """One strategy over its budgets: the joint rows, smallest budget first."""

    name: str
    answers: str
    rows: list[JointStrategy]


def curves(report: Report) -> dict[tuple[str, str], list[BudgetCurve]]:
    """Return the curves of each (task, backbone), in the order of the report."""
    found: dict[tuple[str, str], dict[str, list[JointStrategy]]] = {}
    for row in report.scaling_joint:
        found.setdefault(row.place, {}).setdefault(row.strategy, []).append(row)
    return {
        place: [
            BudgetCurve(name_of(rows[0]), rows[0].answers, sorted(rows, key=lambda row: row.budget))
            for rows in strategies.values()
        ]
        for place, strategies in found.items()
    }


def at_budget(found: Sequence[BudgetCurve]) -> list[JointStrategy]:
    """Return the rows of all curves at the budget of the tables."""
    budget = shown_budget(row.budget for curve in found for row in curve.rows)
    return [row for curve in found for row in curve.rows if row.budget == budget]


def name_of(row: JointStrategy | EqualAccuracy, *, whose: bool = True) -> str:
    """Return the name of the strategy of a row; see `strategy_name`."""
    return strategy_name(row.strategy, row.estimator, row.threshold, whose=whose)
