"""The figures about training: calibration targets, and the confidence along the answers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grace.report.figures.canvas import BLUE, GREY, INK, ORANGE, Figure, panels, save, unit_ticks
from grace.report.names import label, slug
from grace.report.rows import Report
from grace.report.rows.answers import TargetRow, TargetValues, TraceRow

TARGETS = "targets"
TRACES = "traces"
"""Groups of figures."""


def target_figures(report: Report) -> Iterator[Figure]:
    """Draw the calibration targets of each task."""
    values = {entry.task: entry for entry in report.target_values}
    for task in dict.fromkeys(row.task for row in report.targets):
        rows = [row for row in report.targets if row.task == task and row.n]
        if rows:
            yield save(
                draw_targets(rows, values.get(task)),
                f"targets-{slug(task)}",
                f"Calibration targets of {task}",
                "Left: a target is the accuracy of the training answers whose probe score falls "
                "in the same bin; above it their number. Right: the density of those targets; "
                "mass at both ends means that right and wrong answers were told apart.",
                TARGETS,
            )


def trace_figures(report: Report) -> Iterator[Figure]:
    """Draw the confidence along the answers of each task."""
    for row in report.traces:
        if row.right.n and row.wrong.n:
            yield save(
                draw_trace(row),
                f"trace-{slug(row.task)}-{slug(row.backbone)}-{slug(row.name)}",
                f"{label(row.name)}'s confidence along an answer, {row.task}, {row.backbone}",
                f"At each share of an answer, the median over {row.right.n} right and "
                f"{row.wrong.n} wrong test answers, with the middle half of them: where the two "
                "part, the model knows before it has finished writing.",
                TRACES,
            )


def draw_targets(rows: Sequence[TargetRow], values: TargetValues | None) -> Any:
    """Draw the target of each bin, and their density: over responses, or else over bins."""
    figure, (left, right) = panels(2, columns=2, width=3.3, height=2.6)
    low = np.array([row.low for row in rows])
    width = np.array([row.high - row.low for row in rows])
    n = np.array([row.n for row in rows])
    target = np.array([row.accuracy for row in rows])
    left.plot([0, 1], [0, 1], color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
    left.bar(low, target, width, align="edge", color=BLUE, edgecolor="white", linewidth=0.6)
    for x, count in zip(low + width / 2, n, strict=True):
        left.text(x, 1.02, str(count), ha="center", va="bottom", fontsize=6.5)
    left.set(
        xlabel="Probe score", ylabel="Target (accuracy of the bin)", xlim=(0, 1), ylim=(0, 1.08)
    )
    point, count = (values.values, values.counts) if values else (target, n)
    point, count = np.asarray(point, dtype=np.float64), np.asarray(count, dtype=np.float64)
    weight = count / count.sum()
    share, edges = np.histogram(point, len(rows) if len(rows) > 5 else 10, (0, 1), weights=weight)
    right.bar(
        edges[:-1], share / np.diff(edges), np.diff(edges), align="edge", color=GREY, alpha=0.6
    )
    x, density = density_of(point, weight, int(count.sum()))
    right.plot(x, density, color=ORANGE, linewidth=1.6)
    right.set(xlabel="Target", ylabel="Density", xlim=(0, 1))
    for axis in (left, right):
        unit_ticks(axis, y=axis is left)
    return figure


def density_of(
    point: NDArray[np.float64], weight: NDArray[np.float64], count: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return a Gaussian density, reflected at 0 and 1, of Silverman's width (at least .02)."""
    spread = math.sqrt(float(weight @ (point - weight @ point) ** 2))
    width = max(0.9 * spread * count**-0.2, 0.02)
    x = np.linspace(0, 1, 401)
    density = np.zeros_like(x)
    for image in (point, -point, 2 - point):
        z = (x[:, None] - image[None]) / width
        density += np.exp(-0.5 * z**2) @ weight / (width * math.sqrt(2 * math.pi))
    return x, density


def draw_trace(row: TraceRow) -> Any:
    """Draw the confidence in right and in wrong answers over the share that has been written."""
    figure, (axis,) = panels(1, width=4.0, height=3.0)
    sides = ((row.right, "right answers", BLUE, "-"), (row.wrong, "wrong answers", ORANGE, "--"))
    for along, name, color, line in sides:
        share = np.linspace(0, 100, len(along.median))
        axis.fill_between(share, along.low, along.high, color=color, alpha=0.18, linewidth=0)
        axis.plot(share, along.median, color=color, linestyle=line, linewidth=1.8, label=name)
    axis.set(xlabel="Share of the answer written (%)", ylabel="Confidence", xlim=(0, 100))
    axis.set_ylim(0, 1)
    axis.legend(loc="upper left", fontsize=8)
    return figure
