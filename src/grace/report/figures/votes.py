"""The figures about votes: accuracy over samples, and how many samples were used."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from grace.report.figures.canvas import (
    BLUE,
    GREY,
    INK,
    PALETTE,
    SOFT,
    Figure,
    outer_labels,
    panels,
    save,
)
from grace.report.groups import BudgetCurve, at_budget, curves, name_of
from grace.report.names import BASELINE, samples_of, slug
from grace.report.rows import JointStrategy, Report

MARKERS = "osD^vPX*"
MOST_TICKS = 9


def scaling_group(task: str, backbone: str) -> str:
    """Return the group of the figures about one task and backbone."""
    return f"scaling {task} {backbone}"


def vote_figures(report: Report) -> Iterator[Figure]:
    """Draw the figures of each task and backbone."""
    for (task, backbone), strategies in curves(report).items():
        name, title = f"{slug(task)}-{slug(backbone)}", f"on {task}, {backbone}"
        yield save(
            draw_scaling(strategies),
            f"scaling-{name}",
            f"Accuracy over samples {title}",
            "Each point is one budget (1, 2, 4, ...), at the number of samples that it really "
            "used; further left is cheaper, higher is better. Whiskers are 95% intervals over "
            "questions, and over seeds where there are three or more.",
            scaling_group(task, backbone),
        )
        stopping = [row for row in at_budget(strategies) if row.mean_samples < row.budget]
        if stopping:
            yield save(
                draw_used(stopping),
                f"samples-{name}",
                f"Samples that were used {title}",
                f"Of up to {stopping[0].budget} samples, how many a strategy took before it "
                "stopped (T-hat); the dashed line is the mean.",
                scaling_group(task, backbone),
            )


def draw_scaling(strategies: Sequence[BudgetCurve]) -> Any:
    """Draw accuracy over the mean number of samples, SC over the backbone's in every panel."""
    models = list(dict.fromkeys(curve[0].answers for curve in strategies))
    figure, axes = panels(len(models), columns=2, width=4.6, height=4.4, share_y=True)
    for axis, model in zip(axes, models, strict=True):
        shown = [curve for curve in strategies if curve[0].answers == model]
        baseline = [c for c in strategies if c[0].strategy == BASELINE and c not in shown]
        for curve in baseline:
            name = f"{name_of(curve[0])} (the backbone's samples)"
            _line(axis, curve, name, color=GREY, marker="o", linestyle="--")
        for curve, style in zip(shown, _styles(shown), strict=True):
            _line(axis, curve, name_of(curve[0], whose=False), **style)
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter("{x:g}")
        title = samples_of(model)
        axis.set(title=title[0].upper() + title[1:], xlabel="Samples used per question (log scale)")
        axis.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
    for axis in axes[::2]:
        axis.set_ylabel("Accuracy (%)")
    return figure


def _styles(shown: Sequence[BudgetCurve]) -> Iterator[dict[str, str]]:
    """Yield the style of each line: solid where votes are weighted, dotted where counted."""
    colors = {True: itertools.cycle(PALETTE), False: itertools.cycle(SOFT)}
    for curve, marker in zip(shown, itertools.cycle(MARKERS), strict=False):
        weighted = curve[0].estimator is not None
        line = "-" if weighted else ":"
        yield {"color": next(colors[weighted]), "marker": marker, "linestyle": line}


def _line(axis: Any, curve: BudgetCurve, name: str, **style: Any) -> None:
    x = [row.mean_samples for row in curve]
    y = [100 * row.accuracy for row in curve]
    axis.plot(x, y, label=name, linewidth=1.3, markersize=4, **style)
    for row in curve:
        ends = [100 * end for end in row.interval or ()]
        axis.plot([row.mean_samples] * 2, ends, color=style["color"], linewidth=0.6, alpha=0.6)


def draw_used(rows: Sequence[JointStrategy]) -> Any:
    """Draw the share of questions that took 1, 2, ... samples, a panel for each strategy."""
    figure, axes = panels(len(rows), width=2.5, height=1.9, share_y=True)
    for axis, row in zip(axes, rows, strict=True):
        used = 100 * np.array(row.used)
        axis.bar(np.arange(1, len(used) + 1), used, color=BLUE, width=0.85)
        axis.axvline(row.mean_samples, color=INK, linewidth=0.9, linestyle="--")
        axis.set_title(name_of(row).replace(" (", "\n(", 1), fontsize=8)
        axis.set_xticks(range(1, len(used) + 1, -(-len(used) // MOST_TICKS)))
    outer_labels(axes, "Samples used", "Questions (%)")
    return figure
