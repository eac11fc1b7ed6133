"""The figures of a report, drawn from report.json alone: same numbers in, same bytes out.

Colours are safe for colour-blind readers (Okabe and Ito), and nothing is told by colour alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grace.report.figures.canvas import (
    BLUE,
    GREY,
    INK,
    ORANGE,
    PALETTE,
    STYLE,
    Figure,
    outer_labels,
    panels,
    saved,
    unit_ticks,
)
from grace.report.figures.diagrams import (
    draw_reliability,
    draw_time,
    draw_transfer,
    timed,
)
from grace.report.groups import BudgetCurve, Group, at_budget, curves, groups, name_of, transfers
from grace.report.names import BASELINE, label, samples_of, slug
from grace.report.rows import TargetRow, TargetValues, TraceRow, Transfer
from grace.report.scaling.rows import JointStrategy
from grace.report.stored import Report

GENERALIZATION = "generalization"
TARGETS = "targets"
TRACES = "traces"
"""Groups of the figures that belong to no group of estimators."""

MARKERS = "osD^vPX*"
SOFT = ("#59636e", "#8a6d3b", "#5b7f95", "#7a5c86")
MOST_TICKS = 9


def draw(report: Report) -> list[Figure]:
    """Draw every figure that the report has numbers for; matplotlib is imported here."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        return _unique_names(_figures(report))


def _figures(report: Report) -> Iterator[Figure]:
    for group in groups(report):
        yield from _group_figures(group)
    yield from _generalization(report)
    yield from _targets(report)
    yield from _traces(report)
    yield from _scaling(report)


def scaling_group(task: str, backbone: str) -> str:
    """Return the group of the figures on test-time scaling of one task and backbone."""
    return f"scaling {task} {backbone}"


def _group_figures(group: Group) -> Iterator[Figure]:
    name, title = slug(group.title), group.title
    shown = [rated for rated in group.rated if rated.num_answers]
    if not shown:
        return
    yield saved(
        draw_reliability(shown),
        f"reliability-{name}",
        f"Reliability diagrams on {title}",
        "A bar is the accuracy of the answers in one bin of confidence, its colour their "
        "share of all answers (darker is more); hatched is the gap to their mean confidence, "
        "orange where the model is too sure and blue where it is not sure enough.",
        title,
        inline=False,
    )
    if len(timed(shown)) > 1:
        yield saved(
            draw_time(shown),
            f"time-{name}",
            f"Time and ECE on {title}",
            "Seconds to get one answer and its confidence, against ECE with its interval: "
            "the best place is the lower left.",
            title,
        )


def _generalization(report: Report) -> Iterator[Figure]:
    by_place: dict[tuple[str, str, str], list[dict[str, Transfer]]] = {}
    for by_metric in transfers(report):
        by_place.setdefault(next(iter(by_metric.values())).place, []).append(by_metric)
    for (task, train_task, backbone), pairs in by_place.items():
        yield saved(
            draw_transfer(pairs),
            f"generalization-{slug(task)}-from-{slug(train_task)}-{slug(backbone)}",
            f"{task}: trained on it, and trained on {train_task} ({backbone})",
            "An arrow leads from the value after training on the tested task to the value after "
            "training on the other; in brackets the change, orange where clearly worse, blue "
            "where clearly better, grey where the interval of the change holds 0.",
            GENERALIZATION,
        )


def _targets(report: Report) -> Iterator[Figure]:
    values = {entry.task: entry for entry in report.target_values}
    for task in dict.fromkeys(row.task for row in report.targets):
        rows = [row for row in report.targets if row.task == task and row.n]
        if rows:
            yield saved(
                draw_targets(rows, values.get(task)),
                f"targets-{slug(task)}",
                f"Calibration targets of {task}",
                "Left: a target is the accuracy of the training answers whose probe score falls "
                "in the same bin; above it their number. Right: the density of those targets; "
                "mass at both ends means that right and wrong answers were told apart.",
                TARGETS,
            )


def _scaling(report: Report) -> Iterator[Figure]:
    for (task, backbone), found in curves(report).items():
        name, title = f"{slug(task)}-{slug(backbone)}", f"on {task}, {backbone}"
        yield saved(
            draw_scaling(found),
            f"scaling-{name}",
            f"Accuracy over samples {title}",
            "Each point is one budget (1, 2, 4, ...), at the number of samples that it really "
            "used; further left is cheaper, higher is better. Whiskers are 95 % intervals over "
            "questions, and over seeds where there are three or more.",
            scaling_group(task, backbone),
        )
        stopping = [row for row in at_budget(found) if row.mean_samples < row.budget]
        if stopping:
            yield saved(
                draw_used(stopping),
                f"samples-{name}",
                f"Samples that were used {title}",
                f"Of up to {stopping[0].budget} samples, how many a strategy took before it "
                "stopped (T-hat); the dashed line is the mean.",
                scaling_group(task, backbone),
            )


def _traces(report: Report) -> Iterator[Figure]:
    for row in report.traces:
        if row.right.n and row.wrong.n:
            about = f"{row.task}, {row.backbone}"
            yield saved(
                draw_trace(row),
                f"trace-{slug(row.task)}-{slug(row.backbone)}-{slug(row.name)}",
                f"{label(row.name)}'s confidence along an answer, {about}",
                f"At each share of an answer, the median over {row.right.n} right and "
                f"{row.wrong.n} wrong test answers, with the middle half of them: where the two "
                "part, the model knows before it has finished writing.",
                TRACES,
            )


def _unique_names(figures: Iterator[Figure]) -> list[Figure]:
    seen: dict[str, int] = {}
    named = []
    for figure in figures:
        count = seen[figure.name] = seen.get(figure.name, 0) + 1
        named.append(figure if count == 1 else figure._replace(name=f"{figure.name}-{count}"))
    return named


def draw_targets(rows: Sequence[TargetRow], values: TargetValues | None) -> Any:
    """Draw the target of each bin, and the density of the targets (of the bins without them)."""
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


def draw_trace(row: TraceRow) -> Any:
    """Draw the confidence in right and in wrong answers over the share that is written."""
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


def draw_scaling(found: Sequence[BudgetCurve]) -> Any:
    """Draw accuracy over the mean number of samples, a panel for each model that was sampled.

    SC over the backbone's samples stands in every panel, in grey.
    """
    sides = list(dict.fromkeys(curve.answers for curve in found))
    figure, axes = panels(len(sides), columns=2, width=4.6, height=4.4, share_y=True)
    for axis, side in zip(axes, sides, strict=False):
        shown = [curve for curve in found if curve.answers == side]
        baseline = [c for c in found if c.rows[0].strategy == BASELINE and c not in shown]
        for curve in baseline:
            name = f"{curve.name} (the backbone's samples)"
            _line(axis, curve, name, color=GREY, marker="o", linestyle="--")
        for curve, style in zip(shown, _styles(shown), strict=True):
            _line(axis, curve, name_of(curve.rows[0], whose=False), **style)
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter("{x:g}")
        title = samples_of(side)
        axis.set(title=title[0].upper() + title[1:], xlabel="Samples used per question (log scale)")
        axis.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
    for axis in axes[:: min(2, len(sides))]:
        axis.set_ylabel("Accuracy (%)")
    return figure


def _styles(shown: Sequence[BudgetCurve]) -> Iterator[dict[str, str]]:
    """Yield how each line looks: dotted where answers are counted, solid where they are weighed."""
    colors = {True: itertools.cycle(PALETTE), False: itertools.cycle(SOFT)}
    for curve, marker in zip(shown, itertools.cycle(MARKERS), strict=False):
        weighs = curve.rows[0].estimator is not None
        line = "-" if weighs else ":"
        yield {"color": next(colors[weighs]), "marker": marker, "linestyle": line}


def _line(axis: Any, curve: BudgetCurve, name: str, **style: Any) -> None:
    x = [row.mean_samples for row in curve.rows]
    y = [100 * row.accuracy for row in curve.rows]
    axis.plot(x, y, label=name, linewidth=1.3, markersize=4, **style)
    for row in curve.rows:
        ends = [100 * end for end in row.interval or ()]
        axis.plot([row.mean_samples] * 2, ends, color=style["color"], linewidth=0.6, alpha=0.6)


def draw_used(rows: Sequence[JointStrategy]) -> Any:
    """Draw the share of questions that took 1, 2, ... samples, a panel for each strategy."""
    figure, axes = panels(len(rows), width=2.5, height=1.9, share_y=True)
    for axis, row in zip(axes, rows, strict=False):
        used = 100 * np.array(row.used)
        axis.bar(np.arange(1, len(used) + 1), used, color=BLUE, width=0.85)
        axis.axvline(row.mean_samples, color=INK, linewidth=0.9, linestyle="--")
        axis.set_title(name_of(row).replace(" (", "\n(", 1), fontsize=8)
        axis.set_xticks(range(1, len(used) + 1, -(-len(used) // MOST_TICKS)))
    outer_labels(axes, len(rows), "Samples used", "Questions (%)")
    return figure
