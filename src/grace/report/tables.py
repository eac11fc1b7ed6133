"""The tables of a report, made once for the console, Markdown and the page."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from grace.report.groups import Group, Rated, comparisons, transfers
from grace.report.names import (
    ACCESS,
    COMPARED,
    COSTS,
    DETAIL,
    MAIN,
    OURS,
    Column,
    Cost,
    family,
    label,
)
from grace.report.rows import Comparison, Ends, Transfer
from grace.report.stored import Report

FAR_OFF = 6  # times the usual distance from the median: off the scale of the others
NONE = "-"
"""Shown where there is no value."""

ODD = "†"
"""After the interval of an ECE that does not surround its number; see `how_to_read`."""

MARKS = {
    "best": "clearly the best",
    "tied": "best, or not clearly worse than the best",
    "second": "clearly the second",
    "tied second": "shares the second place",
}

MARKED = {
    "best": "bold: clearly the best",
    "tied": '"=": the best, or not clearly worse than the best',
}
"""What a table's lead says of the marks in it."""


class Cell(NamedTuple):
    """One entry of a table.

    `before` and `rest` stand smaller before and after the text. A verdict is about a difference,
    a mark about the place among all, `meaning` says it in words. `value` is what to sort by, the
    text where it is None. `bar` draws low end, value and high end on the scale of the column, in
    percent of its width.
    """

    text: str
    rest: str = ""
    verdict: str = ""
    value: float | None = None
    mark: str = ""
    meaning: str = ""
    before: str = ""
    bar: tuple[float, float, float] | None = None

    @property
    def plain(self) -> str:
        """The text and what follows it."""
        return f"{self.text} {self.rest}".strip()

    @property
    def tied(self) -> bool:
        """True where the place is shared."""
        return self.mark.startswith("tied")

    @property
    def key(self) -> str:
        """The sorting key, as text; empty, which sorts last, where there is no value."""
        if self.value is None:
            return "" if self.text == NONE else self.text
        return repr(self.value)


class Table(NamedTuple):
    """A table with what it is called and how to read it; the first columns are text.

    `meanings` explain the last headings, `families` say of each row what it belongs to, `ours` is
    the label of the row to point out.
    """

    title: str
    lead: str
    heads: tuple[str, ...]
    rows: list[list[Cell]]
    texts: int = 2
    meanings: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    ours: str = ""

    def meaning(self, at: int) -> str:
        """Return what the heading at a place means, empty if that goes without saying."""
        first = len(self.heads) - len(self.meanings)
        return self.meanings[at - first] if at >= first else ""


def percent(value: float | None, ends: Ends | None = None, spread: float | None = None) -> Cell:
    """Return a share in percent, with its standard deviation and its interval if known."""
    rest = [] if spread is None else [f"± {100 * spread:.1f}"]
    rest += [] if ends is None else [f"[{100 * ends[0]:.1f}, {100 * ends[1]:.1f}]"]
    text = NONE if value is None else f"{100 * value:.1f}"
    return Cell(text, " ".join(rest), value=value)


def points(metric: str, value: float | None, ends: Ends | None) -> Cell:
    """Return a difference in percentage points and what it says.

    It is "better", "worse", "equal", or "unclear" where the interval holds 0 or is not known.
    """
    if value is None or ends is None:
        return Cell(NONE, verdict="unclear", value=value)
    low, high = ends
    better = COMPARED[metric] * low > 0
    clear = "unclear" if low * high <= 0 else "better" if better else "worse"
    shown, first, last = (f"{round(100 * v, 1) + 0.0:+.1f}" for v in (value, low, high))
    return Cell(
        shown,
        f"[{first}, {last}]",
        "equal" if low == high == 0 else clear,
        value,
    )


def quality(rated: Rated, metric: str) -> Cell:
    """Return a metric of an estimator, with its place among the others."""
    mean = rated.mean(metric)
    ends = rated.interval(metric)
    made = percent(mean, ends, rated.spread(metric))
    if metric == "ece" and mean is not None and ends and (ends[0] <= 0 or mean >= ends[1]):
        made = made._replace(rest=f"{made.rest}{ODD}")
    mark, gap = rated.mark(metric), rated.gap(metric)
    said = [MARKS[mark]] if mark else []
    if gap:
        against = points(metric, gap.difference, gap.interval).plain
        said.append(f"{against} points against {label(gap.estimator)}")
    return made._replace(mark=mark, meaning="; ".join(said))


def cost(rated: Rated, column: Cost) -> Cell:
    """Return a cost; access sorts from the least to the most."""
    value = rated.cost(column.key)
    if value is None or isinstance(value, str):
        return Cell(value or NONE, value=ACCESS.index(value) if value else None)
    return Cell(number(value), value=value)


def number(value: float) -> str:
    """Return a cost in three digits."""
    if 0 < value < 5e-4:
        return "<0.001"
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            return f"{value / (1e3 if unit == 'k' else size):.3g}{unit}"
    return f"{value:.4g}" if value >= 100 else f"{value:.3g}"


def change(row: Comparison | Transfer | None) -> Cell:
    """Return a change in one metric; before it, for a transfer, the values in and out of domain."""
    if row is None:
        return Cell(NONE, verdict="unclear")
    made = points(row.metric, row.difference, row.interval)
    if isinstance(row, Comparison) or row.in_domain is None or row.out_of_domain is None:
        return made
    return made._replace(before=f"{100 * row.in_domain:.1f} → {100 * row.out_of_domain:.1f}")


def seeds_of(row: Comparison | Transfer) -> str:
    """Return the seeds of a change as text."""
    seeds = row.seeds or (row.seed,)
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds"


def columns(group: Group, wanted: Sequence[Column]) -> list[Column]:
    """Return the columns for which the group has any value."""
    return [c for c in wanted if any(r.mean(c.metric) is not None for r in group.rated)]


def cost_columns(report: Report) -> tuple[Cost, ...]:
    """Return the costs that any estimator of the report has."""
    return tuple(c for c in COSTS if any(row.cost(c.key) is not None for row in report.rows))


# --- whole tables


def quality_table(group: Group, costs: Sequence[Cost]) -> Table:
    """Return every estimator's quality and cost, those that go by the same thing together."""
    scales = {column.metric: _scale(group, column.metric) for column in MAIN}
    rows = []
    for rated in group.rated:
        missing = f"({rated.num_missing} missing)" if rated.num_missing else ""
        cells = [Cell(rated.label), Cell(str(rated.num_answers), missing, value=rated.num_answers)]
        cells += [_drawn(quality(rated, c.metric), rated, c, scales[c.metric]) for c in MAIN]
        rows.append([*cells, *(cost(rated, column) for column in costs)])
    marks = {cell.mark for row in rows for cell in row}
    odd = any(cell.rest.endswith(ODD) for row in rows for cell in row)
    lead = [text for mark, text in MARKED.items() if mark in marks]
    lead += [f"{ODD} chance alone raises ECE, and the interval takes that off"] if odd else []
    return Table(
        group.title,
        "; ".join(lead)[:1].upper() + "; ".join(lead)[1:] + "." * bool(lead),
        ("Estimator", "n", *(c.heading for c in MAIN), *(c.title for c in costs)),
        rows,
        texts=1,
        meanings=(*(c.meaning for c in MAIN), *(c.meaning for c in costs)),
        families=tuple(family(rated.estimator) for rated in group.rated),
        ours=label(OURS),
    )


def _scale(group: Group, metric: str) -> tuple[float, float]:
    """Return the ends of a scale on which those far off do not flatten the others."""
    known = sorted(value for r in group.rated if (value := r.mean(metric)) is not None)
    if not known:
        return 0.0, 1.0
    middle = statistics.median(known)
    away = statistics.median(abs(value - middle) for value in known) or 0.02
    near = [r for r in group.rated if abs((r.mean(metric) or 0.0) - middle) <= FAR_OFF * away]
    ends = [end for r in near for end in (r.interval(metric) or ())]
    values = [value for r in near if (value := r.mean(metric)) is not None]
    low, high = min([*ends, *values]), max([*ends, *values])
    return (low, high) if high > low else (low - 0.01, high + 0.01)


def _drawn(cell: Cell, rated: Rated, column: Column, scale: tuple[float, float]) -> Cell:
    """Return a metric's cell with its bar; accuracy, the same for most, has none."""
    if cell.value is None or column.metric == "accuracy":
        return cell
    low, high = rated.interval(column.metric) or (cell.value, cell.value)
    at = [100 * (v - scale[0]) / (scale[1] - scale[0]) for v in (low, cell.value, high)]
    first, value, last = (min(max(place, 0.0), 100.0) for place in at)
    return cell._replace(bar=(first, value if 0 <= at[1] <= 100 else at[1], last))


def detail_table(group: Group, costs: Sequence[Cost] = ()) -> Table:
    """Return the further metrics of a group, and costs."""
    shown = columns(group, DETAIL)
    rows = [
        [Cell(r.label), *(quality(r, c.metric) for c in shown), *(cost(r, c) for c in costs)]
        for r in group.rated
    ]
    return Table(
        f"More metrics on {group.title}",
        "",
        ("Estimator", *(column.heading for column in shown), *(c.title for c in costs)),
        rows,
        texts=1,
        meanings=(*(c.meaning for c in shown), *(c.meaning for c in costs)),
        ours=label(OURS),
    )


def seed_table(group: Group) -> Table:
    """Return the main metrics of every single seed."""
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
    """Return what training on another task costs on the same test questions."""
    rows = []
    for by_metric in transfers(report):
        first, *_ = by_metric.values()
        about = (first.task, first.train_task, label(first.estimator), seeds_of(first))
        rows.append([*map(Cell, about), *(change(by_metric.get(c.metric)) for c in MAIN[:3])])
    return Table(
        "Trained on another task",
        "The same test questions, answered after training on the tested task (in domain) and on "
        "another (out of domain): in → out, and the change in percentage points.",
        (
            "Tested on",
            "trained on",
            "Estimator",
            "seeds",
            *(f"{c.title} in → out" for c in MAIN[:3]),
        ),
        rows,
        texts=4,
    )


def comparison_table(report: Report, place: tuple[str, str, str] | None = None) -> Table:
    """Return our estimator minus every other, everywhere or at one place."""
    rows = []
    for by_metric in comparisons(report):
        first, *_ = by_metric.values()
        if place in (None, first.place):
            about = () if place else (first.task, first.train_task)
            cells = [change(by_metric.get(column.metric)) for column in MAIN]
            rows.append([*map(Cell, (*about, label(first.b), seeds_of(first))), *cells])
    about = () if place else ("Task", "trained on")
    of = f" of {place[0]}" if place else ""
    of += f", trained on {place[1]}" if place and place[1] != place[0] else ""
    return Table(
        f"{label(OURS)} minus the other, on the same questions{of}",
        "In percentage points. When the interval holds 0, these data do not tell the two apart.",
        (*about, "against", "seeds", *(f"{column.title} (points)" for column in MAIN)),
        rows,
        texts=2 if place else 4,
    )
