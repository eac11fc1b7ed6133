"""Differences for people: GrACE against the others, and in domain against out of domain."""

from __future__ import annotations

from typing import Any

from grace.report.names import estimator_order
from grace.report.table import MAIN, NONE, Report

Pair = tuple[Report, dict[str, Report]]


def comparisons(report: Report) -> list[Pair]:
    """Return the comparisons with one other estimator together, by metric."""
    return _by_metric(report.get("comparisons", []), "b")


def transfers(report: Report) -> list[Pair]:
    """Return what training elsewhere does to one estimator together, by metric."""
    return _by_metric(report.get("transfer", []), "estimator")


def difference(row: Report | None) -> str:
    """Return a difference in points with its interval."""
    if row is None or row["difference"] is None or row["interval"] is None:
        return NONE
    low, high = (100 * end for end in row["interval"])
    return f"{100 * row['difference']:+.1f} [{low:+.1f}, {high:+.1f}]"


def verdict(row: Report | None) -> str:
    """Return "better", "worse", "equal" or "unclear" (the interval holds 0) for a's side."""
    if row is not None and row["interval"] == [0, 0]:
        return "equal"
    if row is None or row["interval"] is None or row["interval"][0] * row["interval"][1] <= 0:
        return "unclear"
    better = next(c.better for c in MAIN if c.metric == row["metric"])
    return "better" if better * row["interval"][0] > 0 else "worse"


def seeds_of(row: Report) -> str:
    """Return the seeds of a comparison as text."""
    seeds = row.get("seeds") or [row["seed"]]
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds"


def _by_metric(rows: list[Report], name: str) -> list[Pair]:
    pairs: dict[tuple[Any, ...], dict[str, Report]] = {}
    for row in rows:
        about = (row["task"], row["train_task"], row["backbone"], row["seed"] or 0)
        pairs.setdefault((*about, estimator_order(row[name])), {})[row["metric"]] = row
    return [(next(iter(pairs[key].values())), pairs[key]) for key in sorted(pairs)]
