"""The figure of the calibration targets: accuracy by bin, and their density."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grace.report.canvas import BLUE, GREY, INK, ORANGE, panels, unit_ticks
from grace.report.table import Report


def draw_targets(rows: Sequence[Report], values: Report | None) -> Any:
    """Draw the target of each bin, and the density of the targets (of the bins without them)."""
    figure, (left, right) = panels(2, columns=2, width=3.3, height=2.6)
    low = np.array([row["low"] for row in rows])
    width = np.array([row["high"] - row["low"] for row in rows])
    n = np.array([row["n"] for row in rows])
    target = np.array([row["accuracy"] for row in rows])
    left.plot([0, 1], [0, 1], color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
    left.bar(low, target, width, align="edge", color=BLUE, edgecolor="white", linewidth=0.6)
    for x, count in zip(low + width / 2, n, strict=True):
        left.text(x, 1.02, str(count), ha="center", va="bottom", fontsize=6.5)
    left.set(
        xlabel="Probe score", ylabel="Target (accuracy of the bin)", xlim=(0, 1), ylim=(0, 1.08)
    )
    point, count = (values["values"], values["counts"]) if values else (target, n)
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
