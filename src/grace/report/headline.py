"""The first line of a report: what is better on validation answers than what was trained."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from grace.report.names import estimator_order, label
from grace.report.table import Report

OURS = "grace"
METRICS = {"log_loss": "log loss", "brier": "Brier score"}
Rows = list[Report]


def headlines(report: Report) -> list[str]:
    """Return a sentence for each task and backbone on which something simpler is better.

    Better is what has a smaller log loss, else a smaller Brier score, by more than a standard
    error; over several seeds, that of the mean.
    """
    cells: dict[tuple[str, str], Rows] = {}
    for row in report.get("validation", []):
        cells.setdefault((row["task"], row["backbone"]), []).append(row)
    found = []
    for (task, backbone), rows in cells.items():
        where = ", ".join(
            name
            for place, name in enumerate((task, backbone))
            if len({cell[place] for cell in cells}) > 1
        )
        if said := _said(rows):
            found.append(f"On validation{f' ({where})' if where else ''}, {said}")
    return found


def _said(rows: Rows) -> str:
    names = {row["a"] for row in rows}
    ours = OURS if OURS in names else min(names)
    for metric, called in METRICS.items():
        mine = [row for row in rows if row["a"] == ours and row["metric"] == metric]
        rivals = sorted({row["b"] for row in mine}, key=estimator_order)
        pairs = [(name, [row for row in mine if row["b"] == name]) for name in rivals]
        better = [(name, of) for name, of in pairs if _is_better(of)]
        if better:
            seeds = len({row["seed"] for row in mine})
            values = _and([f"{_mean(of, 'b_value'):.3f}" for _, of in better])
            over = f", the mean of {seeds} seeds" if seeds > 1 else ""
            return (
                f"{_and([label(name) for name, _ in better])} "
                f"{'is' if len(better) == 1 else 'are'} better than {label(ours)}: {called} "
                f"{values} against {_mean(better[0][1], 'a_value'):.3f}{over}."
            )
    return ""


def _is_better(rows: Rows) -> bool:
    gain = _mean(rows, "a_value") - _mean(rows, "b_value")
    error = math.sqrt(sum(row["standard_error"] ** 2 for row in rows)) / len(rows)
    return gain > error


def _mean(rows: Rows, key: str) -> float:
    return statistics.fmean(row[key] for row in rows)


def _and(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
