"""Tables of cells, made once and shown on the console, in Markdown, on the page and on a card."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from grace.report.groups import Group, at_budget, comparisons, curves, groups, name_of, transfers
from grace.report.names import (
    ACCESS,
    COMPARED,
    COSTS,
    DETAIL,
    FITTED,
    MAIN,
    OURS,
    Column,
    family,
    label,
    samples_of,
    strategy_name,
)
from grace.report.rows import (
    Comparison,
    Discrimination,
    EqualAccuracy,
    Interval,
    MetricRow,
    OpenInterval,
    Report,
    StrategyRow,
    Summary,
    Transfer,
    mean_of,
)

NONE = "-"
"""The text of a cell without a value."""


class Cell(NamedTuple):
    """One entry of a table."""

    text: str
    rest: str = ""  # shown smaller, after the text
    verdict: str = ""  # on a difference: "better", "worse", ...
    value: float | None = None  # sorting key; without one, the text
    mark: str = ""  # rank among all rows: "best", "tied", ...
    meaning: str = ""  # of the mark
    before: str = ""  # shown smaller, before the text
    # low end, value and high end, in percent of its width
    bar: tuple[float, float, float] | None = None

    @property
    def plain(self) -> str:
        """The text and the rest."""
        return f"{self.text} {self.rest}".strip()

    @property
    def tied(self) -> bool:
        """Whether the rank is shared."""
        return self.mark.startswith("tied")

    @property
    def key(self) -> str:
        """The sorting key, as text; empty, which sorts last, where there is no value."""
        if self.value is None:
            return "" if self.text == NONE else self.text
        return repr(self.value)


class Table(NamedTuple):
    """A table with its title and a line on how to read it."""

    title: str
    lead: str
    heads: tuple[str, ...]
    rows: list[list[Cell]]
    texts: int = 2  # first columns, which hold text
    meanings: Mapping[str, str] = {}  # of headings
    families: tuple[str, ...] = ()  # of each row
    ours: str = ""  # label of the row to highlight


def table_of(
    title: str,
    lead: str,
    columns: Mapping[str, Callable[[Any], Cell]],
    rows: Iterable[Any],
    **options: Any,
) -> Table:
    """Make a table of columns, each a heading and the function that shows a row below it."""
    cells = [[show(row) for show in columns.values()] for row in rows]
    return Table(title, lead, tuple(columns), cells, **options)


# --- cells


def percent(
    value: float | None, interval: Interval | None = None, spread: float | None = None
) -> Cell:
    """Show a fraction in percent, with its standard deviation and its interval if there are any."""
    rest = [] if spread is None else [f"± {100 * spread:.1f}"]
    rest += [] if interval is None else [f"[{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]"]
    text = NONE if value is None else f"{100 * value:.1f}"
    return Cell(text, " ".join(rest), value=value)


def points(metric: str, value: float | None, interval: Interval | None) -> Cell:
    """Show a difference in points: better, worse, equal, or "unclear" where 0 is inside."""
    if value is None or interval is None:
        return Cell(NONE, verdict="unclear", value=value)
    low, high = interval
    if low == high == 0:
        verdict = "equal"
    elif low * high <= 0:
        verdict = "unclear"
    else:
        verdict = "better" if COMPARED[metric] * low > 0 else "worse"
    text, first, last = (f"{round(100 * v, 1) + 0.0:+.1f}" for v in (value, low, high))
    return Cell(text, f"[{first}, {last}]", verdict, value)


def measured_in(row: MetricRow, column: Column) -> Cell:
    """Show a metric of one seed with its interval."""
    return percent(getattr(row, column.key), row.interval.get(column.key))


def number(value: float) -> str:
    """Show a cost in three digits."""
    if 0 < value < 5e-4:
        return "<0.001"
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            return f"{value / (1e3 if unit == 'k' else size):.3g}{unit}"
    return f"{value:.4g}" if value >= 100 else f"{value:.3g}"


def shown(rated: Summary, column: Column) -> Cell:
    """Show a metric of an estimator with its mark and distance to the leader, or another number."""
    if column in COSTS:
        return cost(rated, column)
    if column in FITTED:
        return _fitted(rated, column.key)
    metric = column.key
    value = getattr(rated, metric)
    cell = percent(value, rated.interval.get(metric), rated.spread[metric])
    mark, gap = rated.mark.get(metric) or "", rated.to_leader.get(metric)
    meaning = [MARKS[mark]] if mark else []
    if gap:
        difference = points(metric, gap.difference, gap.interval).plain
        meaning.append(f"{difference} points against {label(gap.estimator)}")
    return cell._replace(mark=mark, meaning="; ".join(meaning))


def _fitted(rated: Summary, field: str) -> Cell:
    """Show a slope, an offset or a p-value; that of several seeds is of all of them together."""
    value = getattr(rated, field)
    return Cell(NONE) if value is None else Cell(f"{value:.2f}", value=value)


def cost(rated: Summary, column: Column) -> Cell:
    """Show a cost; access sorts from the least on."""
    value = getattr(rated, column.key)
    if value is None or isinstance(value, str):
        return Cell(value or NONE, value=ACCESS.index(value) if value else None)
    return Cell(number(value), value=value)


def change(row: Comparison | Transfer | None) -> Cell:
    """Show a difference in one metric, for a transfer after the values in and out of domain."""
    if row is None:
        return Cell(NONE, verdict="unclear")
    cell = points(row.metric, row.difference, row.interval)
    if isinstance(row, Comparison) or row.in_domain is None or row.out_of_domain is None:
        return cell
    return cell._replace(before=f"{100 * row.in_domain:.1f} → {100 * row.out_of_domain:.1f}")


def gain(value: float | None, interval: Interval | None) -> Cell:
    """Show a difference in accuracy; an empty cell has no verdict."""
    return Cell(NONE) if value is None else points("accuracy", value, interval)


def _count(value: float, digits: int = 0) -> Cell:
    return Cell(f"{value:.{digits}f}", value=value)


def _seeds_of(row: Comparison | Transfer) -> Cell:
    """Name the only seed of a difference, or count its seeds."""
    return Cell(f"seed {row.seeds[0]}" if len(row.seeds) == 1 else f"{len(row.seeds)} seeds")


def cost_columns(report: Report) -> tuple[Column, ...]:
    """Return the costs that any estimator of the report has."""
    return tuple(c for c in COSTS if any(getattr(r, c.key) is not None for r in report.rows))


# --- tables about answers


FAR_OFF = 6  # times the usual distance from the median: off the scale of the others

MARKS = {
    "best": "clearly the best",
    "tied": "best, or not clearly worse than the best",
    "second": "clearly the second",
    "tied second": "shares the second place",
}
"""The meaning of each mark, for the cell that has it."""

MARKED = {
    "best": "bold: clearly the best",
    "tied": '"=": the best, or not clearly worse than the best',
}
"""The meaning of the marks, for the line above a table that has them."""

OVERVIEW = (OURS, "evidence", "platt", "probe", "likelihood", "p_true", "verbal")
OVERVIEW_LENGTH = 5
"""The overview shows the first five of these estimators that rate every task."""


def overview(report: Report) -> Table | None:
    """Compare a few estimators by their means over all tasks; None with fewer than two."""
    in_domain = [group for group in groups(report) if group.in_domain]
    tasks = [{rated.estimator: rated for rated in group.rated} for group in in_domain]
    names = [name for name in OVERVIEW if tasks and all(name in task for task in tasks)]
    if OURS not in names or len(names) < 2:
        return None

    def mean(name: str, column: Column) -> Cell:
        return percent(mean_of(getattr(task[name], column.key) for task in tasks))

    def tokens(name: str) -> Cell:
        value = mean_of(task[name].extra_forward_tokens_per_answer for task in tasks)
        return Cell(NONE) if value is None else _count(value)

    where = f"mean of {len(tasks)} tasks" if len(tasks) > 1 else in_domain[0].title
    counts = sorted({task[OURS].n for task in tasks})
    ends = dict.fromkeys((counts[0], counts[-1]))
    return table_of(
        "In short",
        f"Percent, {where} ({' to '.join(f'{n:,}' for n in ends)} answers each).",
        {
            "Method": lambda name: Cell(label(name)),
            **{c.heading: partial(mean, column=c) for c in MAIN[:3]},
            "extra tokens per answer ↓": tokens,
        },
        names[:OVERVIEW_LENGTH],
        texts=1,
        meanings={column.heading: column.meaning for column in MAIN[:3]},
        ours=label(OURS),
    )


def quality_table(group: Group, costs: Sequence[Column]) -> Table:
    """Show the quality and cost of every estimator, by family."""

    def answers(rated: Summary) -> Cell:
        missing = f"({rated.missing} missing)" if rated.missing else ""
        return Cell(str(rated.n), missing, value=rated.n)

    bars = {c.heading: partial(_with_bar, column=c, scale=_scale(group, c)) for c in MAIN}
    table = _estimators(group, costs, {"n": answers, **bars}, MAIN)
    marks = {cell.mark for row in table.rows for cell in row}
    lead = "; ".join(text for mark, text in MARKED.items() if mark in marks)
    families = tuple(family(rated.estimator) for rated in group.rated)
    return table._replace(
        title=group.title, lead=lead[:1].upper() + lead[1:] + "." * bool(lead), families=families
    )


def detail_table(group: Group, costs: Sequence[Column] = ()) -> Table:
    """Show the further metrics that any estimator of a group has, and costs."""
    metrics = [c for c in DETAIL if any(getattr(r, c.key) is not None for r in group.rated)]
    return _estimators(group, (*metrics, *FITTED, *costs))


def _estimators(
    group: Group,
    columns: Sequence[Column],
    first: Mapping[str, Callable[[Summary], Cell]] = {},
    explained: Sequence[Column] = (),
) -> Table:
    """Make a table with a row per estimator; `first` are columns before those of `columns`."""
    return table_of(
        f"More metrics on {group.title}",
        "",
        {
            "Estimator": lambda rated: Cell(label(rated.estimator)),
            **first,
            **{c.heading: partial(shown, column=c) for c in columns},
        },
        group.rated,
        texts=1,
        meanings={c.heading: c.meaning for c in (*explained, *columns)},
        ours=label(OURS),
    )


def _scale(group: Group, column: Column) -> tuple[float, float]:
    """Return the ends of a scale for the bars, which leaves out what is far worse than most."""
    metric = column.key
    means = [(value, r) for r in group.rated if (value := getattr(r, metric)) is not None]
    if not means:
        return 0.0, 1.0
    middle = statistics.median(value for value, _ in means)
    away = statistics.median(abs(value - middle) for value, _ in means) or 0.02
    near = [(v, r) for v, r in means if column.better * (v - middle) >= -FAR_OFF * away]
    ends = [end for value, r in near for end in (value, *(r.interval.get(metric) or ()))]
    low, high = min(ends), max(ends)
    return (low, high) if high > low else (low - 0.01, high + 0.01)


def _with_bar(rated: Summary, column: Column, scale: tuple[float, float]) -> Cell:
    """Show a metric with a bar, but for accuracy, which is the same for most."""
    cell = shown(rated, column)
    if cell.value is None or column.key == "accuracy":
        return cell
    low, high = rated.interval.get(column.key) or (cell.value, cell.value)
    at = [100 * (v - scale[0]) / (scale[1] - scale[0]) for v in (low, cell.value, high)]
    first, value, last = (min(max(place, 0.0), 100.0) for place in at)
    return cell._replace(bar=(first, value if 0 <= at[1] <= 100 else at[1], last))


def seed_table(group: Group) -> Table:
    """Show the main metrics of every single seed."""
    return table_of(
        f"Each seed on {group.title}",
        "",
        {
            "Estimator": lambda row: Cell(label(row.estimator)),
            "seed": lambda row: _count(row.seed),
            "n": lambda row: _count(row.n),
            **{c.title: partial(measured_in, column=c) for c in MAIN},
        },
        group.rows,
        texts=1,
    )


def transfer_table(report: Report) -> Table:
    """Show the difference that training on another task makes on the same test questions."""
    first = _first_of
    return table_of(
        "Trained on another task",
        "The same test questions, answered after training on the tested task (in domain) and on "
        "another (out of domain): in → out, and the change in percentage points.",
        {
            "Tested on": lambda by: Cell(first(by).task),
            "trained on": lambda by: Cell(first(by).train_task),
            "Estimator": lambda by: Cell(label(first(by).estimator)),
            "seeds": lambda by: _seeds_of(first(by)),
            **{f"{c.title} in → out": partial(_change_in, c.key) for c in MAIN[:3]},
        },
        transfers(report),
        texts=4,
    )


def comparison_table(report: Report, place: tuple[str, str, str] | None = None) -> Table:
    """Show GrACE minus every other estimator, everywhere or at one place."""
    first = _first_of
    of = f" of {place[0]}" if place else ""
    of += f", trained on {place[1]}" if place and place[1] != place[0] else ""
    where: dict[str, Callable[[Any], Cell]] = {
        "Task": lambda by: Cell(first(by).task),
        "trained on": lambda by: Cell(first(by).train_task),
    }
    return table_of(
        f"{label(OURS)} minus the other, on the same questions{of}",
        "In percentage points. When the interval holds 0, these data do not tell the two apart.",
        {
            **({} if place else where),
            "against": lambda by: Cell(label(first(by).b)),
            "seeds": lambda by: _seeds_of(first(by)),
            **{f"{c.title} (points)": partial(_change_in, c.key) for c in MAIN},
        },
        (by for by in comparisons(report) if place in (None, first(by).place)),
        texts=2 if place else 4,
    )


def _first_of(by_metric: Mapping[str, Any]) -> Any:
    return next(iter(by_metric.values()))


def _change_in(metric: str, by_metric: Mapping[str, Comparison | Transfer]) -> Cell:
    return change(by_metric.get(metric))


# --- tables about votes


def scaling_tables(report: Report) -> dict[tuple[str, str], list[Table]]:
    """Return the tables of each (task, backbone): at a budget, at equal accuracy, of samples."""
    tables = {}
    for place, strategies in curves(report).items():
        equal = [row for row in report.equal_accuracy if row.place == place]
        rated = [row for row in report.discrimination if row.place == place]
        tables[place] = [
            _budget_table(at_budget(strategies)),
            *([_equal_table(equal)] if equal else []),
            *([_discrimination_table(rated)] if rated else []),
        ]
    return tables


def _budget_table(rows: Sequence[StrategyRow]) -> Table:
    first = rows[0]
    own: dict[str, Callable[[StrategyRow], Cell]] = {}
    if any(row.gain_own not in (None, row.gain) for row in rows):
        own["minus SC, same samples"] = lambda row: gain(row.gain_own, row.gain_own_interval)
    seeds = f", {len(first.seeds)} seeds" if len(first.seeds) > 1 else ""
    return table_of(
        f"Up to {first.budget} samples on {first.task}, {first.backbone}",
        f"{first.n} questions{seeds}. Samples and tokens are the mean numbers used. minus SC: the "
        "paired difference in accuracy to SC over the backbone's samples, with the same budget and "
        "questions; in the last column, to SC over the samples that the strategy votes over.",
        {
            "Strategy": lambda row: Cell(name_of(row)),
            "Accuracy ↑": lambda row: percent(row.accuracy, row.interval, row.spread),
            "Samples ↓": lambda row: _samples(row.mean_samples, row.samples_interval),
            "Tokens ↓": lambda row: _count(row.mean_tokens),
            "minus SC (points)": lambda row: gain(row.gain, row.gain_interval),
            **own,
        },
        rows,
        texts=1,
    )


def _equal_table(rows: Sequence[EqualAccuracy]) -> Table:
    first = rows[0]
    return table_of(
        f"At equal accuracy on {first.task}, {first.backbone}",
        "How many samples a strategy needs for the accuracy of another one with up to "
        f"{first.budget}, and how many it saves (paired). Between two budgets the curve is a "
        'straight line, which a mix of both attains. "never": it does not reach that accuracy.',
        {
            "Strategy": lambda row: Cell(name_of(row)),
            "as accurate as": lambda row: Cell(strategy_name(row.reference, None, None)),
            "which has": lambda row: percent(row.accuracy, row.interval),
            "and uses": lambda row: _count(row.reference_samples, 2),
            "needs ↓": lambda row: _samples(row.samples, row.samples_interval),
            "saves ↑": _saved,
        },
        rows,
    )


def _saved(row: EqualAccuracy) -> Cell:
    """Show the samples saved; nothing where the curve does not reach the accuracy."""
    low, high = row.saved_interval
    if high is None or high < 0:
        verdict = "worse"
    else:
        verdict = "unclear" if low is None or low <= 0 else "better"
    if row.saved is None or high is None:
        return Cell(NONE, verdict=verdict)
    first = "never" if low is None else f"{low:+.2f}"
    return Cell(f"{row.saved:+.2f}", f"[{first}, {high:+.2f}]", verdict, row.saved)


def _discrimination_table(rows: Sequence[Discrimination]) -> Table:
    first = rows[0]
    return table_of(
        f"Single samples on {first.task}, {first.backbone}",
        "How good the confidences of single samples are. WQD, within-question discrimination: how "
        "often a right sample is surer than a wrong one of the same question (50 is chance); that, "
        "not AUROC over all questions, is what can change a vote.",
        {
            "Estimator": lambda row: Cell(label(row.estimator)),
            "rates": lambda row: Cell(samples_of(row.answers)),
            "n": lambda row: _count(row.n),
            "Accuracy": lambda row: percent(row.accuracy),
            "ECE ↓": lambda row: percent(row.ece),
            "Brier ↓": lambda row: percent(row.brier),
            "AUROC ↑": lambda row: percent(row.auroc),
            "WQD ↑": lambda row: percent(row.wqd, row.wqd_interval),
        },
        rows,
    )


def _samples(value: float | None, interval: OpenInterval | None) -> Cell:
    if value is None:
        return Cell("never")
    low, high = ("never" if end is None else f"{end:.2f}" for end in interval or (value, value))
    return Cell(f"{value:.2f}", "" if low == high else f"[{low}, {high}]", value=value)
