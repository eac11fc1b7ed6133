"""Figures that set two things against each other: cost and quality, home and away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from grace.report.canvas import BLUE, GREY, INK, ORANGE, panels
from grace.report.diagrams import interval_ends
from grace.report.differences import Pair, verdict
from grace.report.inputs import ACCESS
from grace.report.names import label
from grace.report.table import MAIN, Column, Report, Summary

ACCESS_LOOK = dict(
    zip(ACCESS, zip(("#56b4e9", "#0072b2", "#009e73", "#d55e00"), "os^D", strict=True), strict=True)
)
UNKNOWN_LOOK = ("#59636e", "o")
VERDICT_COLORS = {"better": BLUE, "worse": ORANGE}


def timed(summaries: Sequence[Summary]) -> list[Summary]:
    """Return the estimators whose time and ECE are both known."""
    return [s for s in summaries if s.costs["seconds_per_answer"] and s.mean["ece"] is not None]


def draw_time(summaries: Sequence[Summary]) -> Any:
    """Draw seconds per answer (log scale) against ECE; names stand at the right, in order."""
    shown = sorted(timed(summaries), key=lambda s: -(s.mean["ece"] or 0.0))
    figure, (axis,) = panels(1, width=6.4, height=max(3.0, 0.8 + 0.24 * len(shown)))
    axis.set_xscale("log")
    seconds = [s.costs["seconds_per_answer"] for s in shown]
    percent = [100 * (s.mean["ece"] or 0.0) for s in shown]
    ends = [interval_ends(s, "ece") for s in shown]
    for s, x, y, end in zip(shown, seconds, percent, ends, strict=True):
        color, marker = ACCESS_LOOK.get(s.costs["access"] or "", UNKNOWN_LOOK)
        axis.plot([x, x], end, color=color, linewidth=1, alpha=0.6)
        axis.plot(x, y, marker=marker, color=color, markersize=7, markeredgecolor="white")
    top = float(np.nanmax([*percent, *(high for _, high in ends)]))
    axis.set(xlabel="Seconds per answer (log scale)", ylabel="ECE (%)", ylim=(0, 1.06 * top))
    axis.set_xlim(min(seconds) / 1.6, max(seconds) * 1.6)
    _plain_log_ticks(axis)
    places = _apart([y / (1.06 * top) for y in percent])
    for s, x, y, place in zip(shown, seconds, percent, places, strict=True):
        axis.annotate(
            s.label,
            (x, y),
            (1.03, place),
            textcoords="axes fraction",
            va="center",
            arrowprops={
                "arrowstyle": "-",
                "color": GREY,
                "linewidth": 0.6,
                "shrinkB": 4,
                "relpos": (0, 0.5),
            },
        )
    _access_legend(figure, axis, shown)
    return figure


def _plain_log_ticks(axis: Any) -> None:
    """Label 1, 2 and 5 of each power of ten as plain numbers."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.xaxis.set_major_locator(LogLocator(10, (1, 2, 5), numticks=12))
    axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_formatter(NullFormatter())


def _apart(wanted: Sequence[float]) -> list[float]:
    """Return falling places in [0, 1], near the wanted ones and evenly far enough apart."""
    step = 1.0 / max(len(wanted), 12)
    places: list[float] = []
    for at, place in enumerate(wanted):
        room_below = step * (len(wanted) - 1 - at)
        highest = places[-1] - step if places else 1.0
        places.append(max(min(place, highest), room_below))
    return places


def _access_legend(figure: Any, axis: Any, shown: Sequence[Summary]) -> None:
    used = {s.costs["access"] for s in shown}
    for access, (color, marker) in ACCESS_LOOK.items():
        if access in used:
            axis.plot([], [], marker=marker, color=color, linestyle="", label=access)
    handles, names = axis.get_legend_handles_labels()
    if handles:
        figure.legend(
            handles,
            names,
            title="needs",
            loc="outside upper center",
            ncols=len(names),
            handletextpad=0.1,
            title_fontsize=8.5,
        )


def draw_transfer(pairs: Sequence[Pair]) -> Any:
    """Draw arrows from the value in domain to the value out of domain, one row per estimator."""
    figure, axes = panels(3, columns=3, width=3.1, height=0.85 + 0.3 * len(pairs))
    for at, (axis, column) in enumerate(zip(axes, MAIN[:3], strict=True)):
        for place, (_, by_metric) in enumerate(pairs):
            _arrow(axis, place, by_metric.get(column.metric))
        names = [label(first["estimator"]) for first, _ in pairs]
        axis.set_yticks(range(len(pairs)), names if at == 0 else [])
        axis.set_ylim(len(pairs) - 0.5, -0.5)
        axis.tick_params(axis="y", length=0)
        axis.grid(axis="y", color=GREY, alpha=0.25, linewidth=0.6)
        axis.margins(x=0.12)
        low, high = axis.get_xlim()
        axis.set_xlim(low, high + 0.3 * (high - low))
        axis.set_title(_title(column))
    return figure


def _title(column: Column) -> str:
    return f"{column.title} (%, {'lower' if column.better < 0 else 'higher'} is better)"


def _arrow(axis: Any, place: int, row: Report | None) -> None:
    if row is None or row["in_domain"] is None or row["out_of_domain"] is None:
        return
    start, end = 100 * row["in_domain"], 100 * row["out_of_domain"]
    color = VERDICT_COLORS.get(verdict(row), GREY)
    axis.plot(start, place, "o", color="white", markeredgecolor=color, markersize=5)
    axis.annotate(
        "",
        (end, place),
        (start, place),
        arrowprops={
            "arrowstyle": "-|>",
            "color": color,
            "linewidth": 1.5,
            "mutation_scale": 10,
            "shrinkA": 3,
            "shrinkB": 0,
        },
    )
    axis.plot(end, place, alpha=0)  # arrows do not move the limits of an axis
    axis.annotate(
        f"({end - start:+.1f})",
        (max(start, end), place),
        (7, 0),
        textcoords="offset points",
        va="center",
        fontsize=8,
        color=INK,
    )
