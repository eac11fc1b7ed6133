"""The tables of a report on the console, by rich."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from grace.report.groups import Group, groups
from grace.report.names import MAIN, Column, label
from grace.report.rows import Report, Summary
from grace.report.sentences import headlines, how_to_read, notes
from grace.report.tables import Cell, Table, cost, cost_columns, shown, table_of

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.table import Table as RichTable

MOST_NOTES = 4  # more would fill the console
CONSOLE_STYLE = {"best": "bold", "second": "italic", "tied second": "italic"}
CONSOLE_ACCESS = {"logprobs": "probs", "hidden states": "hidden", "weights": "weight"}
LEFT_OUT_FIRST = (
    "trained_parameters",
    "extra_requests_per_answer",
    "access",
    "seconds_per_answer",
    "extra_forward_tokens_per_answer",
)
"""Costs that are left out on a narrow console, in this order; report.md has them."""
NAME_LINES = 2
"""Lines that a name takes before a cost is left out: a row has two anyway, with its intervals."""


def render_table(report: Report, *, written: bool = True) -> RenderableType:
    """Return the main tables, one per task; `written`: report.md has what does not fit here."""
    from rich.console import Group as Together
    from rich.text import Text

    costs = [column for column in cost_columns(report) if column.key != "fit_seconds"]
    legend = [line.replace("[a, b]", "a-b") for line in how_to_read(report, spread=False)]
    place = "report.md" if written else "the report that --out writes"
    tables = _Fitted([[*_versions(group, costs, place)] for group in groups(report)])
    below = notes(report)
    if written and len(below) > MOST_NOTES:
        below = [f"{len(below)} notes, such as on bins with few answers, are in report.md."]
    first = [Text(line, style="bold") for line in (report.name, *headlines(report))]
    last = [Text(line, style="dim") for line in (*legend, *below)]
    return Together(*first, tables, *last)


def console_table(table: Table) -> RenderableType:
    """Show any table; numbers stay whole, with the rest of a cell below them."""
    return _Fitted([[table._replace(lead="")]])


# --- fitting a console


class _Fitted(NamedTuple):
    """Of each table the first version that fits the console, its names in a few lines."""

    tables: Sequence[Sequence[Table]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        fitting = [_fitting(versions, console, options) for versions in self.tables]
        for at, table in enumerate(fitting, 1):
            yield _rich_table(table)  # rich makes its names as narrow as is needed
            said_below = at < len(fitting) and table.lead == fitting[at].lead
            if table.lead and not said_below:
                yield Text(table.lead, style="dim")


def _fitting(versions: Sequence[Table], console: Console, options: ConsoleOptions) -> Table:
    from rich.measure import Measurement

    unlimited = options.update(width=1000)
    for table in versions:
        names = [cell.text for row in table.rows for cell in row[: table.texts]]
        narrow = _rich_table(table, max(map(_narrowest, names), default=1))
        if Measurement.get(console, unlimited, narrow).maximum <= options.max_width:
            break
    return table


def _narrowest(name: str) -> int:
    """Return the least width at which a name takes at most `NAME_LINES` lines."""
    widths = range(max(map(len, name.split()), default=1), len(name) + 1)
    broken = ((w, textwrap.wrap(name, w, break_on_hyphens=False)) for w in widths)
    return next((width for width, lines in broken if len(lines) <= NAME_LINES), 1)


def _rich_table(table: Table, width: int | None = None) -> RichTable:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(title=Text(table.title), title_justify="left", box=SIMPLE_HEAD)
    shown.padding = 0
    for at, head in enumerate(table.heads):
        if at < table.texts:
            shown.add_column(head, max_width=width)
        else:
            shown.add_column(_in_lines(head), justify="right", no_wrap=True)
    for row in table.rows:
        cells = []
        for cell in row:
            rest = f"\n{_in_lines(cell.rest)}" if cell.rest else ""
            text = Text(cell.text + " =" * cell.tied, CONSOLE_STYLE.get(cell.mark, ""))
            cells.append(text.append(rest, "not bold not italic dim"))
        shown.add_row(*cells)
    return shown


def _in_lines(text: str) -> str:
    """Break a heading, or the rest of a cell, into short lines."""
    return re.sub(r"(?<=[;,]) (?=[a-z])| (?=[\[(])", "\n", text)


# --- quality


def _versions(group: Group, costs: Sequence[Column], place: str) -> Iterator[Table]:
    """Yield a group's table with all costs, and with one less each time; each explains its own."""
    kept = costs
    for left_out in ("", *LEFT_OUT_FIRST):
        kept = [column for column in kept if column.key != left_out]
        known = "; ".join(f"{column.short}: {column.meaning}" for column in kept)
        rest = f"Costs that do not fit here are in {place}." * (len(kept) < len(costs))
        lead = " ".join(filter(None, (known and f"{known}.", rest)))
        yield _quality_table(group, kept)._replace(lead=lead)


def _quality_table(group: Group, costs: Sequence[Column]) -> Table:
    metrics = {column.heading.replace("Accuracy", "Acc"): column for column in MAIN}
    return table_of(
        _title(group),
        "",
        {
            "Estimator": lambda rated: Cell(label(rated.estimator)),
            **{head: partial(_short_quality, column=c) for head, c in metrics.items()},
            **{column.short: partial(_short_cost, column=column) for column in costs},
        },
        group.rated,
        texts=1,
    )


def _short_quality(rated: Summary, column: Column) -> Cell:
    """Show a metric with its interval, but for accuracy, which is the same for most."""
    cell, interval = shown(rated, column), rated.interval.get(column.key)
    if not interval or column.key == "accuracy":
        return cell._replace(rest="")
    return cell._replace(rest="-".join(f"{100 * end:.1f}" for end in interval))


def _short_cost(rated: Summary, column: Column) -> Cell:
    """Show a cost in two digits."""
    value = getattr(rated, column.key)
    if isinstance(value, float) and value < 1e4:
        return Cell(f"{value:.0f}" if value >= 10 else f"{value:.2g}")
    text = cost(rated, column).text
    return Cell(CONSOLE_ACCESS.get(text, text))


def _title(group: Group) -> str:
    """Return the title with the number of answers, "up to" where some estimators rate fewer."""
    counts = {rated.n for rated in group.rated}
    seeds = max(len(rated.seeds) for rated in group.rated)
    n = f"{'up to ' * (len(counts) > 1)}{max(counts)} answers"
    return f"{group.title}: {n}" + (f", {seeds} seeds" if seeds > 1 else "")
