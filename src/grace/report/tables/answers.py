"""The tables about single answers: quality and cost of the estimators, and their differences."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from grace.report.groups import Group, Rated, comparisons, groups, transfers
from grace.report.names import (
    ACCESS,
    COSTS,
    DETAIL,
    FITTED,
    MAIN,
    OURS,
    Column,
    Cost,
    family,
    label,
)
from grace.report.rows import Report, mean_of
from grace.report.rows.answers import Comparison, Transfer
from grace.report.tables import NONE, Cell, Table, number, percent, points

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


# --- cells


def quality(rated: Rated, metric: str) -> Cell:
    """Show a metric of an estimator, with its mark and its distance to the leader."""
    mean, interval = rated.mean(metric), rated.interval(metric)
    cell = percent(mean, interval, rated.spread(metric))
    mark, gap = rated.mark(metric), rated.gap(metric)
    meaning = [MARKS[mark]] if mark else []
    if gap:
        difference = points(metric, gap.difference, gap.interval).plain
        meaning.append(f"{difference} points against {label(gap.estimator)}")
    return cell._replace(mark=mark, meaning="; ".join(meaning))


def _fitted(rated: Rated, field: str) -> Cell:
    """Show a slope, an offset or a p-value; that of several seeds is of all of them together."""
    own = rated.summary.p_calibrated if rated.summary and field == "p_calibrated" else None
    value = rated.mean(field) if own is None else own
    return Cell(NONE) if value is None else Cell(f"{value:.2f}", value=value)


def cost(rated: Rated, column: Cost) -> Cell:
    """Show a cost; access sorts from the least on."""
    value = rated.cost(column.key)
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


def seeds_of(row: Comparison | Transfer) -> str:
    """Name the only seed of a difference, or count its seeds."""
    return f"seed {row.seeds[0]}" if len(row.seeds) == 1 else f"{len(row.seeds)} seeds"


def cost_columns(report: Report) -> tuple[Cost, ...]:
    """Return the costs that any estimator of the report has."""
    return tuple(c for c in COSTS if any(getattr(r, c.key) is not None for r in report.rows))


# --- tables


def overview(report: Report) -> Table | None:
    """Compare a few estimators by their means over all tasks; None with fewer than two."""
    in_domain = [group for group in groups(report) if group.in_domain]
    tasks = [{rated.estimator: rated for rated in group.rated} for group in in_domain]
    names = [name for name in OVERVIEW if tasks and all(name in task for task in tasks)]
    if OURS not in names or len(names) < 2:
        return None
    rows = []
    for name in names[:OVERVIEW_LENGTH]:
        means = [mean_of(task[name].mean(column.metric) for task in tasks) for column in MAIN[:3]]
        tokens = mean_of(task[name].cost("extra_forward_tokens_per_answer") for task in tasks)
        shown = Cell(NONE if tokens is None else f"{tokens:.0f}", value=tokens)
        rows.append([Cell(label(name)), *map(percent, means), shown])
    where = f"mean of {len(tasks)} tasks" if len(tasks) > 1 else in_domain[0].title
    counts = sorted({task[OURS].num_answers for task in tasks})
    ends = dict.fromkeys((counts[0], counts[-1]))
    return Table(
        "In short",
        f"Percent, {where} ({' to '.join(f'{n:,}' for n in ends)} answers each).",
        ("Method", *(column.heading for column in MAIN[:3]), "extra tokens per answer ↓"),
        rows,
        texts=1,
        meanings={column.heading: column.meaning for column in MAIN[:3]},
        ours=label(OURS),
    )


def quality_table(group: Group, costs: Sequence[Cost]) -> Table:
    """Show the quality and cost of every estimator, by family."""
    scales = {column.metric: _scale(group, column) for column in MAIN}
    rows = []
    for rated in group.rated:
        missing = f"({rated.num_missing} missing)" if rated.num_missing else ""
        cells = [Cell(rated.label), Cell(str(rated.num_answers), missing, value=rated.num_answers)]
        cells += [_with_bar(quality(rated, c.metric), rated, c, scales[c.metric]) for c in MAIN]
        rows.append([*cells, *(cost(rated, column) for column in costs)])
    marks = {cell.mark for row in rows for cell in row}
    lead = [text for mark, text in MARKED.items() if mark in marks]
    return Table(
        group.title,
        "; ".join(lead)[:1].upper() + "; ".join(lead)[1:] + "." * bool(lead),
        ("Estimator", "n", *(c.heading for c in MAIN), *(c.title for c in costs)),
        rows,
        texts=1,
        meanings={c.heading: c.meaning for c in MAIN} | {c.title: c.meaning for c in costs},
        families=tuple(family(rated.estimator) for rated in group.rated),
        ours=label(OURS),
    )


def _scale(group: Group, column: Column) -> tuple[float, float]:
    """Return the ends of a scale for the bars, which leaves out what is far worse than most."""
    metric = column.metric
    means = [(value, r) for r in group.rated if (value := r.mean(metric)) is not None]
    if not means:
        return 0.0, 1.0
    middle = statistics.median(value for value, _ in means)
    away = statistics.median(abs(value - middle) for value, _ in means) or 0.02
    near = [(v, r) for v, r in means if column.better * (v - middle) >= -FAR_OFF * away]
    ends = [end for value, r in near for end in (value, *(r.interval(metric) or ()))]
    low, high = min(ends), max(ends)
    return (low, high) if high > low else (low - 0.01, high + 0.01)


def _with_bar(cell: Cell, rated: Rated, column: Column, scale: tuple[float, float]) -> Cell:
    """Add a bar to the cell of a metric, but for accuracy, which is the same for most."""
    if cell.value is None or column.metric == "accuracy":
        return cell
    low, high = rated.interval(column.metric) or (cell.value, cell.value)
    at = [100 * (v - scale[0]) / (scale[1] - scale[0]) for v in (low, cell.value, high)]
    first, value, last = (min(max(place, 0.0), 100.0) for place in at)
    return cell._replace(bar=(first, value if 0 <= at[1] <= 100 else at[1], last))


def detail_table(group: Group, costs: Sequence[Cost] = ()) -> Table:
    """Show the further metrics that any estimator of a group has, and costs."""
    shown = [c for c in DETAIL if any(r.mean(c.metric) is not None for r in group.rated)]
    rows = [
        [
            Cell(r.label),
            *(quality(r, c.metric) for c in shown),
            *(_fitted(r, field) for field, _, _ in FITTED),
            *(cost(r, c) for c in costs),
        ]
        for r in group.rated
    ]
    return Table(
        f"More metrics on {group.title}",
        "",
        (
            "Estimator",
            *(column.heading for column in shown),
            *(title for _, title, _ in FITTED),
            *(c.title for c in costs),
        ),
        rows,
        texts=1,
        meanings={
            **{c.heading: c.meaning for c in shown},
            **{title: meaning for _, title, meaning in FITTED},
            **{c.title: c.meaning for c in costs},
        },
        ours=label(OURS),
    )


def seed_table(group: Group) -> Table:
    """Show the main metrics of every single seed."""
    rows = [
        [
            Cell(rated.label),
            Cell(str(row.seed), value=row.seed),
            Cell(str(row.n), value=row.n),
            *(quality(Rated((row,)), column.metric) for column in MAIN),
        ]
        for rated in group.rated
        for row in rated.rows
    ]
    heads = ("Estimator", "seed", "n", *(column.title for column in MAIN))
    return Table(f"Each seed on {group.title}", "", heads, rows, texts=1)


def transfer_table(report: Report) -> Table:
    """Show the difference that training on another task makes on the same test questions."""
    rows = []
    for by_metric in transfers(report):
        first, *_ = by_metric.values()
        texts = (first.task, first.train_task, label(first.estimator), seeds_of(first))
        rows.append([*map(Cell, texts), *(change(by_metric.get(c.metric)) for c in MAIN[:3])])
    heads = ("Tested on", "trained on", "Estimator", "seeds")
    return Table(
        "Trained on another task",
        "The same test questions, answered after training on the tested task (in domain) and on "
        "another (out of domain): in → out, and the change in percentage points.",
        (*heads, *(f"{column.title} in → out" for column in MAIN[:3])),
        rows,
        texts=4,
    )


def comparison_table(report: Report, place: tuple[str, str, str] | None = None) -> Table:
    """Show GrACE minus every other estimator, everywhere or at one place."""
    rows = []
    for by_metric in comparisons(report):
        first, *_ = by_metric.values()
        if place in (None, first.place):
            where = () if place else (first.task, first.train_task)
            cells = [change(by_metric.get(column.metric)) for column in MAIN]
            rows.append([*map(Cell, (*where, label(first.b), seeds_of(first))), *cells])
    heads = ("against", "seeds") if place else ("Task", "trained on", "against", "seeds")
    of = f" of {place[0]}" if place else ""
    of += f", trained on {place[1]}" if place and place[1] != place[0] else ""
    return Table(
        f"{label(OURS)} minus the other, on the same questions{of}",
        "In percentage points. When the interval holds 0, these data do not tell the two apart.",
        (*heads, *(f"{column.title} (points)" for column in MAIN)),
        rows,
        texts=len(heads),
    )
