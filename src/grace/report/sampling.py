"""Figures of test-time scaling: accuracy over samples, and how many samples are used."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from grace.report.canvas import BLUE, GREY, INK, PALETTE, panels
from grace.report.replays import BASELINE
from grace.report.scaling import Curve, samples_of, strategy_name
from grace.report.table import Report

MARKERS = "osD^vPX*"
SOFT = ("#59636e", "#8a6d3b", "#5b7f95", "#7a5c86")
MOST_TICKS = 9


def draw_scaling(found: Sequence[Curve]) -> Any:
    """Draw accuracy over the mean number of samples, a panel for each model that was sampled.

    SC over the backbone's samples stands in every panel, in grey.
    """
    sides = list(dict.fromkeys(curve.answers for curve in found))
    figure, axes = panels(len(sides), columns=2, width=4.6, height=4.4, share_y=True)
    for axis, side in zip(axes, sides, strict=False):
        shown = [curve for curve in found if curve.answers == side]
        baseline = [c for c in found if c.rows[0]["strategy"] == BASELINE and c not in shown]
        for curve in baseline:
            name = f"{curve.name} (the backbone's samples)"
            _line(axis, curve, name, color=GREY, marker="o", linestyle="--")
        for curve, style in zip(shown, _styles(shown), strict=True):
            _line(axis, curve, strategy_name(curve.rows[0], whose=False), **style)
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter("{x:g}")
        title = samples_of(side)
        axis.set(title=title[0].upper() + title[1:], xlabel="Samples used per question (log scale)")
        axis.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
    for axis in axes[:: min(2, len(sides))]:
        axis.set_ylabel("Accuracy (%)")
    return figure


def _styles(shown: Sequence[Curve]) -> Iterator[dict[str, str]]:
    """Yield how each line looks: dotted where answers are counted, solid where they are weighed."""
    colors = {True: itertools.cycle(PALETTE), False: itertools.cycle(SOFT)}
    for curve, marker in zip(shown, itertools.cycle(MARKERS), strict=False):
        weighs = curve.rows[0]["estimator"] is not None
        line = "-" if weighs else ":"
        yield {"color": next(colors[weighs]), "marker": marker, "linestyle": line}


def _line(axis: Any, curve: Curve, name: str, **style: Any) -> None:
    x = [row["mean_samples"] for row in curve.rows]
    y = [100 * row["accuracy"] for row in curve.rows]
    axis.plot(x, y, label=name, linewidth=1.3, markersize=4, **style)
    for row in curve.rows:
        ends = [100 * end for end in row["interval"]]
        axis.plot([row["mean_samples"]] * 2, ends, color=style["color"], linewidth=0.6, alpha=0.6)


def draw_used(rows: Sequence[Report]) -> Any:
    """Draw the share of questions that took 1, 2, ... samples, a panel for each strategy."""
    figure, axes = panels(len(rows), width=2.5, height=1.9, share_y=True)
    for axis, row in zip(axes, rows, strict=False):
        used = 100 * np.array(row["used"])
        axis.bar(np.arange(1, len(used) + 1), used, color=BLUE, width=0.85)
        axis.axvline(row["mean_samples"], color=INK, linewidth=0.9, linestyle="--")
        axis.set_title(_in_two_lines(strategy_name(row)), fontsize=8)
        axis.set_xticks(range(1, len(used) + 1, -(-len(used) // MOST_TICKS)))
    rows_of_panels = -(-len(rows) // 4)
    columns = -(-len(rows) // rows_of_panels)
    for at, axis in enumerate(axes[: len(rows)]):
        if at % columns == 0:
            axis.set_ylabel("Questions (%)")
        if at + columns >= len(rows):
            axis.set_xlabel("Samples used")
    return figure


def _in_two_lines(name: str) -> str:
    return name.replace(" (", "\n(", 1)
