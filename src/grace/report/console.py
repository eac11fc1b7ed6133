"""The tables of a report on the console, by rich."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from grace.report.groups import Group, Rated, groups
from grace.report.names import MAIN, Cost
from grace.report.rows import Report
from grace.report.sentences import headlines, how_to_read, notes
from grace.report.tables import Cell, Table
from grace.report.tables.answers import cost, cost_columns, quality

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.table import Table as RichTable

LABEL_WIDTH = 11  # "Likelihood" stays in one piece
MOST_NOTES = 4  # more would fill the console
CONSOLE_STYLE = {"best": "bold", "second": "italic", "tied second": "italic"}
CONSOLE_ACCESS = {"logprobs": "probs", "hidden states": "hidden", "weights": "weight"}
LEFT_OUT_FIRST = ("trained_parameters", "extra_requests_per_answer", "access")
"""Costs that are left out on a narrow console, in this order; report.md has them."""


def render_table(report: Report) -> RenderableType:
    """Return the main tables, one per task, for a console of any width."""
    from rich.console import Group as Together
    from rich.text import Text

    costs = [column for column in cost_columns(report) if column.key != "fit_seconds"]
    tables = [_Fitted(group, costs) for group in groups(report)]
    legend = " ".join(how_to_read(report)).replace("[a, b]", "a-b")
    meanings = "; ".join(f"{c.short}: {c.meaning}" for c in costs)
    legend += f" {meanings}." if meanings else ""
    below = notes(report)
    if len(below) > MOST_NOTES:
        below = [f"{len(below)} notes, such as on bins with few answers, are in report.md."]
    first = [Text(line, style="bold") for line in (report.name, *headlines(report))]
    last = [Text(line, style="dim") for line in (legend, *below)]
    return Together(*first, *tables, *last)


class _Fitted(NamedTuple):
    """A group's table with as many costs as fit the width of the console."""

    group: Group
    costs: list[Cost]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.measure import Measurement

        costs = self.costs
        table = _quality_table(self.group, costs)
        unlimited = options.update(width=1000)
        for left_out in ("", *LEFT_OUT_FIRST):
            if Measurement.get(console, unlimited, table).maximum <= options.max_width:
                break
            costs = [column for column in costs if column.key != left_out]
            table = _quality_table(self.group, costs, LABEL_WIDTH)
        yield table


def _quality_table(
    group: Group, costs: Sequence[Cost], label_width: int | None = None
) -> RichTable:
    metrics = [column.heading.replace("Accuracy", "Acc") for column in MAIN]
    heads = ("Estimator", *metrics, *(column.short for column in costs))
    rows = [
        [
            Cell(rated.label),
            *(_short_quality(rated, column.metric) for column in MAIN),
            *(Cell(_short_cost(rated, column)) for column in costs),
        ]
        for rated in group.rated
    ]
    return console_table(Table(_title(group), "", heads, rows, texts=1), label_width)


def _short_quality(rated: Rated, metric: str) -> Cell:
    """Show a metric with its interval, but for accuracy, which is the same for most."""
    cell, interval = quality(rated, metric), rated.interval(metric)
    if not interval or metric == "accuracy":
        return cell._replace(rest="")
    return cell._replace(rest="-".join(f"{100 * end:.1f}" for end in interval))


def _short_cost(rated: Rated, column: Cost) -> str:
    """Show a cost in two digits."""
    value = rated.cost(column.key)
    if isinstance(value, float) and value < 1e4:
        return f"{value:.0f}" if value >= 10 else f"{value:.2g}"
    text = cost(rated, column).text
    return CONSOLE_ACCESS.get(text, text)


def _title(group: Group) -> str:
    """Return the title with the number of answers, "up to" where some estimators rate fewer."""
    counts = {rated.num_answers for rated in group.rated}
    seeds = max(len(rated.rows) for rated in group.rated)
    n = f"{'up to ' * (len(counts) > 1)}{max(counts)} answers"
    return f"{group.title}: {n}" + (f", {seeds} seeds" if seeds > 1 else "")


def console_table(table: Table, label_width: int | None = None) -> RichTable:
    """Show any table; numbers stay whole, with the rest of a cell below them."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(title=Text(table.title), title_justify="left", box=SIMPLE_HEAD)
    shown.padding = 0
    for at, head in enumerate(table.heads):
        if at < table.texts:
            shown.add_column(head, overflow="fold", width=label_width)
        else:
            shown.add_column(_in_lines(head), justify="right", no_wrap=True)
    for row in table.rows:
        cells = []
        for cell in row:
            text = _hyphenated(cell.text) + " =" * cell.tied
            rest = f"\n{_in_lines(cell.rest)}" if cell.rest else ""
            style = CONSOLE_STYLE.get(cell.mark, "")
            cells.append(Text(text, style).append(rest, "not bold not italic dim"))
        shown.add_row(*cells)
    return shown


def _hyphenated(text: str) -> str:
    """Break a name after a hyphen, where a narrow column would cut the word."""
    return re.sub(r"(?<=[a-z]-)(?=[a-z]{9})", "\n", text)


def _in_lines(text: str) -> str:
    """Break a heading, or the rest of a cell, into short lines."""
    return re.sub(r"(?<=[;,]) (?=[a-z])| (?=[\[(])", "\n", text)
