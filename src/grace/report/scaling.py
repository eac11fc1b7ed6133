"""Test-time scaling: what a budget of samples buys, as one table per budget and as curves."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from grace.report.names import label
from grace.report.table import NONE, Report

TABLE_BUDGET = 8
"""The budget of the paper's tables; where it is missing the largest one is shown."""

BUDGET_TITLES = ("Strategy", "Accuracy ↑", "Samples ↓", "Tokens ↓")


class Point(NamedTuple):
    """A strategy at one budget, averaged over seeds; interval and spread where known."""

    budget: int
    accuracy: float
    mean_samples: float
    mean_tokens: float | None
    interval: tuple[float, float] | None
    spread: float | None

    @property
    def texts(self) -> tuple[str, str, str]:
        """Accuracy, samples and tokens for a table."""
        about = "" if self.spread is None else f" ± {100 * self.spread:.1f}"
        if self.interval is not None:
            about += f" [{100 * self.interval[0]:.1f}, {100 * self.interval[1]:.1f}]"
        tokens = NONE if self.mean_tokens is None else f"{self.mean_tokens:.0f}"
        return f"{100 * self.accuracy:.1f}{about}", f"{self.mean_samples:.2f}", tokens


class Curve(NamedTuple):
    """One strategy over its budgets."""

    name: str
    points: list[Point]


class BudgetRow(NamedTuple):
    """One line of a table: its texts, and the values to sort by."""

    texts: list[str]
    values: list[str | float | None]


class BudgetTable(NamedTuple):
    """All strategies at one budget."""

    title: str
    rows: list[BudgetRow]


def curves(report: Report) -> dict[tuple[str, str], list[Curve]]:
    """Return the curves of each (task, backbone), in the order of the report."""
    found: dict[tuple[str, str], dict[str, dict[int, list[Report]]]] = {}
    for row in report.get("scaling", []):
        if row["accuracy"] is None or row["mean_samples"] is None:
            continue
        strategies = found.setdefault((row["task"], row["backbone"]), {})
        strategies.setdefault(strategy_name(row), {}).setdefault(row["budget"], []).append(row)
    return {
        about: [
            Curve(name, [_point(budget, rows) for budget, rows in sorted(budgets.items())])
            for name, budgets in strategies.items()
        ]
        for about, strategies in found.items()
    }


def budget_tables(report: Report) -> list[BudgetTable]:
    """Return one table per (task, backbone) at the budget of the paper's tables."""
    tables = []
    for (task, backbone), found in curves(report).items():
        budgets = {point.budget for curve in found for point in curve.points}
        budget = TABLE_BUDGET if TABLE_BUDGET in budgets else max(budgets)
        rows = [
            BudgetRow(
                [curve.name, *point.texts],
                [curve.name, point.accuracy, point.mean_samples, point.mean_tokens],
            )
            for curve in found
            for point in curve.points
            if point.budget == budget
        ]
        tables.append(BudgetTable(f"Up to {budget} samples on {task}, {backbone}", rows))
    return tables


RULES = {"sc": "SC", "asc": "ASC", "esc": "ESC", "es": "ES", "cisc": "CISC", "best": "best of n"}


def strategy_name(row: Report) -> str:
    """Return a strategy as the paper writes it: whose confidences, which samples, what threshold.

    Names are `[ESTIMATOR-]RULE[,OPTIONS][@SAMPLES]`; without `@` the samples are the backbone's,
    or the tuned model's where it gives the confidences.
    """
    name, _, samples = row["strategy"].partition("@")
    rule, _, options = name.partition(",")
    source, dash, rule = rule.rpartition("-")
    shown = RULES.get(rule, rule)
    shown = f"{label(source)}-{shown}" if dash else shown
    about = [label(row["estimator"])] if row["estimator"] not in (None, source) else []
    about += [f"{label(samples)}'s samples"] if samples else []
    about += [options.replace(",", ", ").replace("=", " ")] if options else []
    about += [] if row["threshold"] is None else [f"stop at {row['threshold']:g}"]
    return f"{shown} ({', '.join(about)})" if about else shown


def _point(budget: int, rows: Sequence[Report]) -> Point:
    accuracies = [row["accuracy"] for row in rows]
    tokens = [row["mean_tokens"] for row in rows if row["mean_tokens"] is not None]
    alone = rows[0].get("interval") if len(rows) == 1 else None
    return Point(
        budget,
        statistics.fmean(accuracies),
        statistics.fmean(row["mean_samples"] for row in rows),
        statistics.fmean(tokens) if tokens else None,
        (alone[0], alone[1]) if alone else None,
        statistics.stdev(accuracies) if len(rows) > 1 else None,
    )
