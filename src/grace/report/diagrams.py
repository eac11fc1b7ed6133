"""Figures of one group of estimators: bars of metrics, reliability, confidence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from grace.report.canvas import BLUE, GREY, INK, ORANGE, outer_labels, panels, unit_ticks
from grace.report.table import MAIN, Report, Summary

LOWEST_SHARE_COLOR = 0.12
SMALLEST_FULL_SHARE = 0.25  # the darkest bar colour never stands for less


def draw_metrics(summaries: Sequence[Summary]) -> Any:
    """Draw ECE, Brier score and AUROC as bars with intervals."""
    figure, axes = panels(3, columns=3, width=2.9, height=0.75 + 0.27 * len(summaries))
    y = np.arange(len(summaries))
    for at, (axis, column) in enumerate(zip(axes, MAIN[:3], strict=True)):
        means = [math.nan if (m := s.mean[column.metric]) is None else 100 * m for s in summaries]
        colors = [BLUE if s.estimator == "grace" else GREY for s in summaries]
        start = 50 if column.metric == "auroc" else 0
        axis.barh(y, np.array(means) - start, left=start, height=0.62, color=colors)
        ends = [interval_ends(s, column.metric) for s in summaries]
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


def interval_ends(summary: Summary, metric: str) -> tuple[float, float]:
    """Return the interval of a metric in percent; without one the spread over seeds, or nan."""
    mean, spread = summary.mean[metric], summary.spread[metric]
    interval = summary.interval.get(metric)
    if interval is None and mean is not None and spread is not None:
        interval = [mean - spread, mean + spread]
    return (100 * interval[0], 100 * interval[1]) if interval else (math.nan, math.nan)


def draw_reliability(summaries: Sequence[Summary]) -> Any:
    """Draw one reliability diagram per estimator; the colour of a bar is its share of answers."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, Normalize

    shades = colormaps["YlOrRd"](np.linspace(LOWEST_SHARE_COLOR, 1, 256))
    palette = LinearSegmentedColormap.from_list("share", shades)
    pooled = [pooled_bars(summary) for summary in summaries]
    top = max(
        bar["n"] / s.num_answers for s, bars in zip(summaries, pooled, strict=True) for bar in bars
    )
    norm = Normalize(0, 100 * max(top, SMALLEST_FULL_SHARE))
    figure, axes = panels(len(summaries), width=2.3, height=2.65)
    for axis, summary, bars in zip(axes, summaries, pooled, strict=False):
        axis.plot([0, 1], [0, 1], color=INK, linewidth=0.8, linestyle=(0, (4, 3)), zorder=4)
        for bar in bars:
            share = 100 * bar["n"] / summary.num_answers
            _reliability_bar(axis, bar, palette(norm(share)))
        ece = summary.mean["ece"]
        axis.set_title(summary.label + ("" if ece is None else f"\nECE {100 * ece:.1f}"))
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


def pooled_bars(summary: Summary) -> list[Report]:
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


def draw_confidence(summaries: Sequence[Summary]) -> Any:
    """Draw histograms of the confidence of right answers (up) and wrong ones (down)."""
    from matplotlib.ticker import FuncFormatter

    figure, axes = panels(len(summaries), width=2.3, height=2.05, share_y=True)
    for axis, summary in zip(axes, summaries, strict=False):
        rows = [row["histogram"] for row in summary.rows if row["n"]]
        for name, color, sign in (("right", BLUE, 1), ("wrong", ORANGE, -1)):
            count = np.sum([row[name] for row in rows], axis=0)
            share = sign * 100 * count / summary.num_answers
            edges = np.arange(len(count)) / len(count)
            axis.bar(edges, share, 1 / len(count), align="edge", color=color, label=name)
        axis.axhline(0, color=INK, linewidth=0.7)
        auroc = summary.mean["auroc"]
        axis.set_title(summary.label + ("" if auroc is None else f"\nAUROC {100 * auroc:.1f}"))
        axis.set(xlim=(0, 1))
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{abs(value):g}"))
        unit_ticks(axis, y=False)
    outer_labels(axes, len(summaries), "Confidence", "Answers (%)")
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper right", ncols=2, handlelength=1)
    return figure
