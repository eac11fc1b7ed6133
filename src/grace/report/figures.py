"""The figures of a report, drawn from report.json alone: same numbers in, same bytes out.

Colours are safe for colour-blind readers (Okabe and Ito) and bar colour also changes in
lightness.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grace.report.canvas import INK, STYLE, Figure, outer_labels, panels, saved, unit_ticks
from grace.report.table import MAIN, Report, Summary, groups

BLUE, ORANGE, GREY = "#0072b2", "#d55e00", "#9aa4b0"
LOWEST_SHARE_COLOR = 0.12
SMALLEST_FULL_SHARE = 0.25  # the darkest bar colour never stands for less


def draw(report: Report, target_values: Sequence[float] = ()) -> list[Figure]:
    """Draw every figure that the report has numbers for; matplotlib is imported here.

    `target_values` gives the density of the targets; without it the bins of the report do.
    """
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        return _unique_names(_figures(report, target_values))


def _figures(report: Report, target_values: Sequence[float]) -> Iterator[Figure]:
    for group in groups(report):
        slug, title = _slug(group.title), group.title
        shown = [s for s in group.summaries if s.num_answers]
        if not shown:
            continue
        yield saved(
            _draw_metrics(shown),
            f"metrics-{slug}",
            f"Calibration and discrimination on {title}",
            "ECE and Brier score are better to the left, AUROC to the right; whiskers are "
            "bootstrap intervals, or the spread over seeds.",
            title,
        )
        yield saved(
            _draw_reliability(shown),
            f"reliability-{slug}",
            f"Reliability diagrams on {title}",
            "A bar is the accuracy of the answers in one bin of confidence, its colour their "
            "share of all answers (darker is more); hatched is the gap to their mean confidence, "
            "orange where the model is too sure and blue where it is not sure enough.",
            title,
        )
        yield saved(
            _draw_confidence(shown),
            f"confidence-{slug}",
            f"Confidence of right and wrong answers on {title}",
            "Right answers up, wrong answers down: the further apart the two, the better "
            "confidence tells them apart.",
            title,
        )
    for task in dict.fromkeys(row.get("task", "") for row in report["targets"]):
        rows = [r for r in report["targets"] if r.get("task", "") == task and r["n"]]
        if rows:
            yield saved(
                _draw_targets(rows, target_values),
                f"targets-{_slug(task)}",
                f"Calibration targets of {task}",
                "Left: a target is the accuracy of the training answers whose probe score falls "
                "in the same bin. Right: the density of those targets; mass at both ends means "
                "that right and wrong answers were told apart.",
                f"Training targets of {task}",
            )


def _draw_metrics(summaries: Sequence[Summary]) -> Any:
    figure, axes = panels(3, columns=3, width=2.9, height=0.75 + 0.27 * len(summaries))
    y = np.arange(len(summaries))
    for at, (axis, column) in enumerate(zip(axes, MAIN[:3], strict=True)):
        means = [math.nan if (m := s.mean[column.metric]) is None else 100 * m for s in summaries]
        colors = [BLUE if s.estimator == "grace" else GREY for s in summaries]
        start = 50 if column.metric == "auroc" else 0
        axis.barh(y, np.array(means) - start, left=start, height=0.62, color=colors)
        ends = [_whisker(s, column.metric) for s in summaries]
        for row, (low, high) in enumerate(ends):
            axis.plot([low, high], [row, row], color=INK, linewidth=1.1, solid_capstyle="butt")
        known = [v for pair in [*ends, means] for v in np.atleast_1d(pair) if not math.isnan(v)]
        low, high = min([*known, start]), max([*known, start + 1])
        for row, (mean, end) in enumerate(zip(means, ends, strict=True)):
            if not math.isnan(mean):
                x = max(v for v in (mean, *end) if not math.isnan(v)) + 0.02 * (high - low)
                axis.text(x, row, f"{mean:.1f}", va="center", fontsize=8)
        axis.set_xlim(low, high + 0.16 * (high - low))
        axis.set_yticks(y, [s.label for s in summaries] if at == 0 else [])
        axis.set_ylim(len(summaries) - 0.5, -0.5)
        axis.tick_params(axis="y", length=0)
        axis.set_title(
            f"{column.title} (%, {'lower' if column.better < 0 else 'higher'} is better)"
        )
    return figure


def _whisker(summary: Summary, metric: str) -> tuple[float, float]:
    mean, spread = summary.mean[metric], summary.spread[metric]
    interval = summary.interval[metric]
    if mean is not None and spread is not None:
        interval = [mean - spread, mean + spread]
    return (100 * interval[0], 100 * interval[1]) if interval else (math.nan, math.nan)


def _draw_reliability(summaries: Sequence[Summary]) -> Any:
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, Normalize

    shades = colormaps["YlOrRd"](np.linspace(LOWEST_SHARE_COLOR, 1, 256))
    palette = LinearSegmentedColormap.from_list("share", shades)
    pooled = [_pooled_bars(summary) for summary in summaries]
    top = max(
        bar["n"] / s.num_answers for s, bars in zip(summaries, pooled, strict=True) for bar in bars
    )
    norm = Normalize(0, 100 * max(top, SMALLEST_FULL_SHARE))
    figure, axes = panels(len(summaries), width=2.3, height=2.5)
    for axis, summary, bars in zip(axes, summaries, pooled, strict=False):
        axis.plot([0, 1], [0, 1], color=INK, linewidth=0.8, linestyle=(0, (4, 3)), zorder=4)
        for bar in bars:
            share = 100 * bar["n"] / summary.num_answers
            _reliability_bar(axis, bar, palette(norm(share)))
        ece = summary.mean["ece"]
        axis.set_title(summary.label + ("" if ece is None else f" (ECE {100 * ece:.1f})"))
        axis.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
        unit_ticks(axis)
    outer_labels(axes, len(summaries), "Confidence", "Accuracy")
    scale = figure.colorbar(
        ScalarMappable(norm, palette), ax=axes, fraction=0.05, pad=0.02, aspect=28, shrink=0.86
    )
    scale.set_label("Share of all answers (%)")
    scale.outline.set_visible(False)
    return figure


def _reliability_bar(axis: Any, bar: Report, color: Any) -> None:
    low, width = bar["low"], bar["high"] - bar["low"]
    axis.bar(low, bar["accuracy"], width, align="edge", color=color, edgecolor=INK, linewidth=0.6)
    gap = bar["confidence"] - bar["accuracy"]
    edge = ORANGE if gap > 0 else BLUE
    axis.bar(
        low + 0.12 * width,
        gap,
        0.76 * width,
        bottom=bar["accuracy"],
        align="edge",
        facecolor="none",
        edgecolor=edge,
        hatch="////",
        linewidth=0.7,
        zorder=3,
    )


def _pooled_bars(summary: Summary) -> list[Report]:
    """Return the bars that are not empty, each pooled over the seeds."""
    bars = []
    for parts in zip(*(row["reliability"] for row in summary.rows if row["n"]), strict=True):
        n = sum(part["n"] for part in parts)
        if n:
            means = {
                key: sum(part["n"] * (part[key] or 0.0) for part in parts) / n
                for key in ("confidence", "accuracy")
            }
            bars.append({"low": parts[0]["low"], "high": parts[0]["high"], "n": n, **means})
    return bars


def _draw_confidence(summaries: Sequence[Summary]) -> Any:
    from matplotlib.ticker import FuncFormatter

    figure, axes = panels(len(summaries), width=2.3, height=1.9, share_y=True)
    for axis, summary in zip(axes, summaries, strict=False):
        rows = [row["histogram"] for row in summary.rows if row["n"]]
        for name, color, sign in (("right", BLUE, 1), ("wrong", ORANGE, -1)):
            count = np.sum([row[name] for row in rows], axis=0)
            share = sign * 100 * count / summary.num_answers
            edges = np.arange(len(count)) / len(count)
            axis.bar(edges, share, 1 / len(count), align="edge", color=color, label=name)
        axis.axhline(0, color=INK, linewidth=0.7)
        auroc = summary.mean["auroc"]
        axis.set_title(summary.label + ("" if auroc is None else f" (AUROC {100 * auroc:.1f})"))
        axis.set(xlim=(0, 1))
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{abs(value):g}"))
        unit_ticks(axis, y=False)
    outer_labels(axes, len(summaries), "Confidence", "Answers (%)")
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper right", ncols=2, handlelength=1)
    return figure


def _draw_targets(rows: Sequence[Report], values: Sequence[float]) -> Any:
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
    given = np.asarray(values, dtype=np.float64)
    point, weight = (given, np.ones(len(given))) if len(given) else (target, n.astype(float))
    weight = weight / weight.sum()
    share, edges = np.histogram(point, len(rows) if len(rows) > 5 else 10, (0, 1), weights=weight)
    right.bar(
        edges[:-1], share / np.diff(edges), np.diff(edges), align="edge", color=GREY, alpha=0.6
    )
    x, density = _density(point, weight, max(len(given), int(n.sum())))
    right.plot(x, density, color=ORANGE, linewidth=1.6)
    right.set(xlabel="Target", ylabel="Density", xlim=(0, 1))
    for axis in (left, right):
        unit_ticks(axis, y=axis is left)
    return figure


def _density(
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


def _unique_names(figures: Iterator[Figure]) -> list[Figure]:
    seen: dict[str, int] = {}
    named = []
    for figure in figures:
        count = seen[figure.name] = seen.get(figure.name, 0) + 1
        named.append(figure if count == 1 else figure._replace(name=f"{figure.name}-{count}"))
    return named


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "task"
