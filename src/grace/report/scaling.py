"""Test-time scaling for people: what strategies are called, their curves, and when they stop."""

from __future__ import annotations

from typing import NamedTuple

from grace.report.names import label
from grace.report.replays import BASE, shown_budget
from grace.report.table import Report

About = tuple[str, str]
RULES = {"sc": "SC", "asc": "ASC", "esc": "ESC", "es": "ES", "cisc": "CISC", "best": "best of n"}


class Curve(NamedTuple):
    """One strategy over its budgets: the joint rows, smallest budget first."""

    name: str
    answers: str
    rows: list[Report]


def curves(report: Report) -> dict[About, list[Curve]]:
    """Return the curves of each (task, backbone), in the order of the report."""
    found: dict[About, dict[str, list[Report]]] = {}
    for row in report.get("scaling_joint", []):
        strategies = found.setdefault((row["task"], row["backbone"]), {})
        strategies.setdefault(row["strategy"], []).append(row)
    return {
        about: [
            Curve(
                strategy_name(rows[0]),
                rows[0]["answers"],
                sorted(rows, key=lambda row: int(row["budget"])),
            )
            for rows in strategies.values()
        ]
        for about, strategies in found.items()
    }


def at_budget(found: list[Curve]) -> list[Report]:
    """Return the rows of all curves at the budget of the tables."""
    budget = shown_budget(row["budget"] for curve in found for row in curve.rows)
    return [row for curve in found for row in curve.rows if row["budget"] == budget]


def stops_early(row: Report) -> bool:
    """Return whether a strategy ever used fewer samples than its budget."""
    return bool(row["mean_samples"] < row["budget"])


def samples_of(answers: str) -> str:
    """Return whose samples these are."""
    return "the backbone's samples" if answers == BASE else f"{label(answers)}'s samples"


def strategy_name(row: Report, *, whose: bool = True) -> str:
    """Return a strategy as the paper writes it: whose confidences, which samples, what threshold.

    Names are `[ESTIMATOR-]RULE[,OPTIONS][@SAMPLES]`; without `@` the samples are the backbone's,
    or the tuned model's where it gives the confidences.

    Args:
        row: a row with `strategy`, `estimator` and `threshold`.
        whose: say also which samples follow the `@`.
    """
    name, _, samples = row["strategy"].partition("@")
    rule, _, options = name.partition(",")
    source, dash, rule = rule.rpartition("-")
    shown = RULES.get(rule, rule)
    shown = f"{label(source)}-{shown}" if dash else shown
    about = [label(row["estimator"])] if row["estimator"] not in (None, source) else []
    about += [f"{label(samples)}'s samples"] if samples and whose else []
    about += [options.replace(",", ", ").replace("=", " ")] if options else []
    about += [] if row["threshold"] is None else [f"stop at {row['threshold']:g}"]
    return f"{shown} ({', '.join(about)})" if about else shown
