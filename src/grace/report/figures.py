"""The figures of a report, drawn from its rows alone: same numbers in, same bytes out.

Colours are safe for colour-blind readers (Okabe and Ito), and none carries meaning alone. Text and
axes are drawn in `INK`, which the page replaces by the colour of its text.
"""

from __future__ import annotations

import collections
import io
import itertools
import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from grace.metrics import Bar
from grace.report.groups import BudgetCurve, at_budget, curves, groups, name_of, transfers
from grace.report.names import ACCESS, BASELINE, MAIN, label, samples_of, slug
from grace.report.rows import Report, StrategyRow, Summary, TargetRow, TraceRow, Transfer, group_by
from grace.report.tables import change
from grace.thresholds.cascade import Forwarded

INK = "#1f2328"
BLUE, ORANGE, GREEN, PINK, YELLOW, SKY = PALETTE = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
)
"""Okabe and Ito's colours, which colour-blind readers can tell apart."""

GREY = "#9aa4b0"
SOFT = ("#59636e", "#8a6d3b", "#5b7f95", "#7a5c86")

THEMED = {
    BLUE: "blue",
    ORANGE: "orange",
    GREEN: "green",
    PINK: "pink",
    YELLOW: "yellow",
    SKY: "sky",
    GREY: "grey",
    **dict(zip(SOFT, ("soft", "yellow", "sky", "pink"), strict=True)),
}
"""The page's name for each colour, which it has for a light and for a dark theme."""

STYLE = {
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.labelsize": 9,
    "axes.linewidth": 0.7,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10,
    "axes.titlecolor": INK,
    "figure.dpi": 100,
    "font.family": ["DejaVu Sans"],
    "font.size": 8.5,
    "legend.frameon": False,
    "savefig.dpi": 200,
    "savefig.facecolor": "white",
    "svg.fonttype": "none",
    "svg.hashsalt": "grace",
    "text.parse_math": False,  # a name may hold dollar signs
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
}

FORMATS: dict[str, dict[str, Any]] = {
    "svg": {"transparent": True, "metadata": {"Date": None, "Creator": None}},
    "pdf": {"metadata": {"CreationDate": None, "Creator": None, "Producer": None}},
    "png": {"metadata": {"Software": None}},
}
"""The file formats, each with the options that keep dates and program names out of it."""


class Figure(NamedTuple):
    """A drawn figure: its name without ending, and its files by their endings."""

    name: str
    title: str
    caption: str
    group: str
    files: dict[str, bytes]


def panels(
    count: int, *, width: float, height: float, columns: int = 4, share_y: bool = False
) -> tuple[Any, list[Any]]:
    """Return a figure and its panels: at most `columns` in a row, in rows of even length."""
    from matplotlib.figure import Figure as Canvas
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    rows = math.ceil(count / columns)
    columns = math.ceil(count / rows)
    margin = (0.01, 0, 0.98, 1)  # else a long name ends at the very edge
    spaced = ConstrainedLayoutEngine(h_pad=0.08, w_pad=0.05, rect=margin)
    figure = Canvas(figsize=(columns * width + 0.6, rows * height), layout=spaced)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=share_y)
    axes = list(grid.ravel())
    for spare in axes[count:]:
        spare.set_axis_off()
    return figure, axes[:count]


def save(figure: Any, name: str, title: str, caption: str, group: str) -> Figure:
    """Save a drawn figure in every format of `FORMATS`."""
    files = {}
    for ending, options in FORMATS.items():
        file = io.BytesIO()
        figure.savefig(file, format=ending, **options)
        figure.set_layout_engine(None)  # the layout stays; "none" would draw everything twice
        files[ending] = file.getvalue()
    return Figure(name, title, caption, group, files)


# --- answers: reliability, time, training on another task, targets and traces

GENERALIZATION = "generalization"
"""The group of the figures on training elsewhere; the others belong to a group of estimators."""

HALVES = (0, 0.5, 1)
FLOOR, TALL = -0.26, 0.2  # where answers are counted below a reliability diagram, and how high
ACCESS_LOOK = dict(zip(ACCESS, zip((SKY, BLUE, GREEN, ORANGE), "os^D", strict=True), strict=True))
UNKNOWN_LOOK = (SOFT[0], "o")
VERDICT_COLORS = {"better": BLUE, "worse": ORANGE}

LEADER = {"arrowstyle": "-", "color": GREY, "linewidth": 0.6, "shrinkB": 4, "relpos": (0, 0.5)}
ARROW = {"arrowstyle": "-|>", "linewidth": 1.5, "mutation_scale": 10, "shrinkA": 3, "shrinkB": 0}
"""Styles of the line from a point to its name, and of a transfer."""


def estimator_figures(report: Report) -> Iterator[Figure]:
    """Draw reliability, and time against ECE, of each group of estimators."""
    for group in groups(report):
        name, title = slug(group.title), group.title
        shown = [rated for rated in group.rated if rated.n]
        if not shown:
            continue
        yield save(
            draw_reliability(shown),
            f"reliability-{name}",
            f"Reliability diagrams on {title}",
            "A bar is the accuracy of the answers in one bin of confidence, paler where there are "
            "fewer; the gap to their mean confidence is orange where the model is too sure and "
            "blue where it is not sure enough. Below, how many right (up) and wrong answers "
            "(down) have that confidence.",
            title,
        )
        timed = [s for s in shown if s.seconds_per_answer and s.ece is not None]
        if len(timed) > 1:
            yield save(
                draw_time(timed),
                f"time-{name}",
                f"Time and ECE on {title}",
                "Seconds to get one answer and its confidence, against ECE with its interval: "
                "the best place is the lower left.",
                title,
            )


def transfer_figures(report: Report) -> Iterator[Figure]:
    """Draw, for each pair of tasks, the difference that training on the other one makes."""
    by_place = group_by(transfers(report), lambda row: next(iter(row.values())).place)
    for (task, train_task, backbone), pairs in by_place.items():
        yield save(
            draw_transfer(pairs),
            f"generalization-{slug(task)}-from-{slug(train_task)}-{slug(backbone)}",
            f"{task}: trained on it, and trained on {train_task} ({backbone})",
            "An arrow leads from the value after training on the tested task to the value after "
            "training on the other; in brackets the change, orange where clearly worse, blue "
            "where clearly better, grey where the interval of the change holds 0.",
            GENERALIZATION,
        )


def draw_reliability(rated: Sequence[Summary]) -> Any:
    """Draw a reliability diagram per estimator, and below it its right and wrong answers."""
    figure, axes = panels(len(rated), width=2.0, height=2.9)
    for axis, each in zip(axes, rated, strict=True):
        bars = [bar for bar in each.reliability if bar.n]
        most = max(bar.n for bar in bars)
        for bar in bars:
            _reliability_bar(axis, bar, 0.25 + 0.75 * bar.n / most)
        axis.plot([0, 1], [0, 1], color=INK, linewidth=0.7, linestyle=(0, (4, 3)))
        _answer_counts(axis, each)
        shown = ((c.title, getattr(each, c.key)) for c in MAIN[:3:2])
        values = [f"{title} {100 * value:.1f}" for title, value in shown if value is not None]
        title = [*textwrap.wrap(label(each.estimator), 26), " · ".join(values)]
        axis.set_title("\n".join(title), fontsize=8.5)
        axis.set(xlim=(0, 1), ylim=(FLOOR - TALL, 1), aspect="equal", xticks=HALVES, yticks=HALVES)
        axis.spines["left"].set_bounds(0, 1)
        axis.spines["bottom"].set_visible(False)
    figure.supxlabel("Confidence", fontsize=9)
    figure.supylabel("Accuracy", fontsize=9)
    return figure


def _reliability_bar(axis: Any, bar: Bar, solid: float) -> None:
    """Draw the accuracy of a bin, and in colour the gap to its mean confidence."""
    confidence, accuracy = bar.confidence or 0.0, bar.accuracy or 0.0
    gap = {"color": ORANGE if confidence > accuracy else BLUE, "bottom": accuracy}
    for height, look in ((accuracy, {"color": GREY}), (confidence - accuracy, gap)):
        axis.bar(bar.low, height, bar.high - bar.low, align="edge", alpha=solid, **look)


def _answer_counts(axis: Any, rated: Summary) -> None:
    """Draw how many right (upwards) and wrong answers (downwards) have each confidence."""
    assert rated.histogram is not None  # of an estimator with answers
    right, wrong = map(np.array, (rated.histogram.right, rated.histogram.wrong))
    most, edges = max(*right, *wrong), np.linspace(0, 1, len(right) + 1)
    for counts, color in ((right / most, BLUE), (-wrong / most, ORANGE)):
        axis.stairs(FLOOR + TALL * counts, edges, baseline=FLOOR, fill=True, color=color)
    for line in (0, FLOOR):
        axis.axhline(line, color=INK, linewidth=0.7)


def draw_time(rated: Sequence[Summary]) -> Any:
    """Draw seconds per answer (log scale) against ECE, with the names at the right, in order."""
    shown = sorted(rated, key=lambda s: -(s.ece or 0.0))
    figure, (axis,) = panels(1, width=6.4, height=max(3.0, 0.8 + 0.24 * len(shown)))
    axis.set_xscale("log")
    seconds = [float(s.seconds_per_answer or 0) for s in shown]
    percent = [100 * (s.ece or 0.0) for s in shown]
    ends = [100 * np.array(s.interval.get("ece") or (math.nan, math.nan)) for s in shown]
    for s, x, y, end in zip(shown, seconds, percent, ends, strict=True):
        color, marker = ACCESS_LOOK.get(str(s.access), UNKNOWN_LOOK)
        axis.plot([x, x], end, color=color, linewidth=1, alpha=0.6)
        axis.plot(x, y, marker=marker, color=color, markersize=7, markeredgecolor="white")
    top = 1.06 * (float(np.nanmax([*percent, *(high for _, high in ends)])) or 1.0)
    axis.set(xlabel="Seconds per answer (log scale)", ylabel="ECE (%)", ylim=(0, top))
    axis.set_xlim(min(seconds) / 1.6, max(seconds) * 1.6)
    _plain_log_ticks(axis)
    places = _apart([y / top for y in percent])
    for s, x, y, place in zip(shown, seconds, percent, places, strict=True):
        where = {"xytext": (1.03, place), "textcoords": "axes fraction", "va": "center"}
        axis.annotate(label(s.estimator), (x, y), **where, arrowprops=LEADER)
    _access_legend(figure, axis, shown)
    return figure


def _plain_log_ticks(axis: Any) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.xaxis.set_major_locator(LogLocator(10, (1, 2, 5), numticks=12))
    axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_formatter(NullFormatter())


def _apart(wanted: Sequence[float]) -> list[float]:
    """Return falling places in [0, 1], near the wanted ones but far enough apart for a label."""
    step = 1.0 / max(len(wanted), 12)
    places: list[float] = []
    for at, place in enumerate(wanted):
        room_below = step * (len(wanted) - 1 - at)
        highest = places[-1] - step if places else 1.0
        places.append(max(min(place, highest), room_below))
    return places


def _access_legend(figure: Any, axis: Any, shown: Sequence[Summary]) -> None:
    used = {s.access for s in shown}
    for access, (color, marker) in ACCESS_LOOK.items():
        if access in used:
            axis.plot([], [], marker=marker, color=color, linestyle="", label=access)
    handles, names = axis.get_legend_handles_labels()
    if handles:
        where = {"loc": "outside upper center", "ncols": len(names), "handletextpad": 0.1}
        figure.legend(handles, names, title="needs", title_fontsize=8.5, **where)


def draw_transfer(pairs: Sequence[Mapping[str, Transfer]]) -> Any:
    """Draw arrows from the value in domain to the value out of domain, one row per estimator."""
    figure, axes = panels(3, columns=3, width=3.1, height=0.85 + 0.3 * len(pairs))
    for at, (axis, column) in enumerate(zip(axes, MAIN[:3], strict=True)):
        for place, by_metric in enumerate(pairs):
            _arrow(axis, place, by_metric.get(column.key))
        names = [label(next(iter(by_metric.values())).estimator) for by_metric in pairs]
        axis.set_yticks(range(len(pairs)), names if at == 0 else [])
        axis.set_ylim(len(pairs) - 0.5, -0.5)
        axis.tick_params(axis="y", length=0)
        axis.grid(axis="y", color=GREY, alpha=0.25, linewidth=0.6)
        axis.margins(x=0.12)
        low, high = axis.get_xlim()
        axis.set_xlim(low, high + 0.3 * (high - low))
        axis.set_title(column.axis)
    return figure


def _arrow(axis: Any, place: int, row: Transfer | None) -> None:
    if row is None or row.in_domain is None or row.out_of_domain is None:
        return
    start, end = 100 * row.in_domain, 100 * row.out_of_domain
    color = VERDICT_COLORS.get(change(row).verdict, GREY)
    axis.plot(start, place, "o", color="white", markeredgecolor=color, markersize=5)
    axis.annotate("", (end, place), (start, place), arrowprops=ARROW | {"color": color})
    axis.plot(end, place, alpha=0)  # arrows do not move the limits of an axis
    where = {"xytext": (7, 0), "textcoords": "offset points", "va": "center"}
    axis.annotate(f"({end - start:+.1f})", (max(start, end), place), **where, fontsize=8, color=INK)


TARGETS = "targets"
TRACES = "traces"
"""Groups of figures."""


def target_figures(report: Report) -> Iterator[Figure]:
    """Draw the calibration targets of each task."""
    for task in dict.fromkeys(row.task for row in report.targets):
        rows = [row for row in report.targets if row.task == task and row.n]
        if rows:
            yield save(
                draw_targets(rows),
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


def draw_targets(rows: Sequence[TargetRow]) -> Any:
    """Draw the target of each bin, and how often responses have which target."""
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
    right.hist(target, max(len(rows), 10), range=(0, 1), density=True, weights=n, color=BLUE)
    right.set(xlabel="Target", ylabel="Density", xlim=(0, 1))
    return figure


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


# --- votes: accuracy over samples, and how many samples were used

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


def draw_used(rows: Sequence[StrategyRow]) -> Any:
    """Draw the share of questions that took 1, 2, ... samples, a panel for each strategy."""
    figure, axes = panels(len(rows), width=2.5, height=1.9, share_y=True)
    for axis, row in zip(axes, rows, strict=True):
        used = 100 * np.array(row.used)
        axis.bar(np.arange(1, len(used) + 1), used, color=BLUE, width=0.85)
        axis.axvline(row.mean_samples, color=INK, linewidth=0.9, linestyle="--")
        axis.set_title(name_of(row).replace(" (", "\n(", 1), fontsize=8)
        axis.set_xticks(range(1, len(used) + 1, -(-len(used) // MOST_TICKS)))
    figure.supxlabel("Samples used", fontsize=9)
    figure.supylabel("Questions (%)", fontsize=9)
    return figure


# --- a cascade: accuracy over the share of questions that a large model answers

LOOKS = {
    "grace": {"color": BLUE},
    "likelihood": {"color": ORANGE, "linestyle": "--"},
    "chance": {"color": GREY, "linestyle": ":"},
    "oracle": {"color": GREEN, "linestyle": "-."},
}


def draw_cascade(curve: Sequence[Forwarded], names: Mapping[str, str], ending: str) -> bytes:
    """Draw the accuracy of each route, that of the confidence with its interval; one file."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        figure, (axis,) = panels(1, width=4.6, height=3.4)
        share = [100 * point.share for point in curve]
        for name in curve[0].accuracy:
            right = [100 * point.accuracy[name] for point in curve]
            axis.plot(share, right, label=names[name], linewidth=1.3, **LOOKS[name])
        low, high = zip(*(point.interval for point in curve), strict=True)
        scaled = ([100 * one for one in ends] for ends in (low, high))
        axis.fill_between(share, *scaled, color=BLUE, alpha=0.15, linewidth=0)
        axis.set(xlabel="Questions that the large model answers (%)", ylabel="Accuracy (%)")
        axis.legend(fontsize=7)
        return save(figure, "cascade", "", "", "").files[ending]


# --- all of them


def draw(report: Report) -> list[Figure]:
    """Draw every figure that the report has numbers for; matplotlib is imported here."""
    import matplotlib

    kinds = (estimator_figures, transfer_figures, target_figures, trace_figures, vote_figures)
    named: list[Figure] = []
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        drawn = collections.Counter[str]()
        for figure in itertools.chain.from_iterable(kind(report) for kind in kinds):
            drawn[figure.name] += 1  # tasks "a b" and "a/b" would share a file name
            more = f"-{drawn[figure.name]}" if drawn[figure.name] > 1 else ""
            named.append(figure._replace(name=figure.name + more))
    return named
