"""A report as text: Markdown for report.md, rich for the console."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from grace.report.groups import Group, Rated, groups
from grace.report.names import DETAIL, MAIN, Cost, as_code
from grace.report.scaling.tables import scaling_tables
from grace.report.sentences import headlines, how_to_read, notes
from grace.report.stored import Report
from grace.report.tables import (
    Cell,
    Table,
    comparison_table,
    cost,
    cost_columns,
    detail_table,
    quality,
    quality_table,
    seed_table,
    transfer_table,
)
from grace.report.verdict import samples_saved, verdict

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.table import Table as RichTable


LABEL_WIDTH = 11  # "Likelihood" stays in one piece
MOST_NOTES = 4  # more would fill the console
CONSOLE_STYLE = {"best": "bold", "second": "italic", "tied second": "italic"}
CONSOLE_ACCESS = {"logprobs": "probs", "hidden states": "hidden", "weights": "weight"}
LEFT_OUT_FIRST = ("trained_parameters", "extra_requests_per_answer", "access")
"""Costs that a narrow console goes without, in this order; report.md has them."""


# --- the console


def render_table(report: Report) -> RenderableType:
    """Return the main tables for the console, one per task; they fit its width."""
    from rich.console import Group as Together
    from rich.text import Text

    costs = [column for column in cost_columns(report) if column.key != "fit_seconds"]
    tables = [_Fitted(group, costs) for group in groups(report)]
    legend = " ".join(how_to_read(report)).replace("[a, b]", "a-b")
    meanings = "; ".join(f"{c.short}: {c.meaning}" for c in costs)
    legend += f" {meanings}." if meanings else ""
    said = notes(report)
    if len(said) > MOST_NOTES:
        said = [f"{len(said)} notes, on thin bins and the like, stand in report.md."]
    lines = [Text(line, style="dim") for line in (legend, *said)]
    first = [Text(line, style="bold") for line in headlines(report)]
    return Together(Text(report.name, style="bold"), *first, *tables, *lines)


class _Fitted(NamedTuple):
    """A group's table with as many of the costs as the console is wide enough for."""

    group: Group
    costs: list[Cost]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.measure import Measurement

        costs = self.costs
        table = _quality_table(self.group, costs)
        for left_out in ("", *LEFT_OUT_FIRST):
            if (
                Measurement.get(console, options.update(width=1000), table).maximum
                <= options.max_width
            ):
                break
            costs = [column for column in costs if column.key != left_out]
            table = _quality_table(self.group, costs, LABEL_WIDTH)
        yield table


def _quality_table(
    group: Group, costs: Sequence[Cost], label_width: int | None = None
) -> RichTable:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(_console_title(group)), title_justify="left", box=SIMPLE_HEAD)
    table.padding = 0
    table.add_column("Estimator", overflow="fold", width=label_width)
    heads = [column.heading.replace("Accuracy", "Acc") for column in MAIN]
    for title in (*heads, *(column.short for column in costs)):
        table.add_column(title, justify="right", no_wrap=True)
    for rated in group.rated:
        cells = []
        for column in MAIN:
            cell = quality(rated, column.metric)
            text = Text(_with_tie(cell.text, cell), style=CONSOLE_STYLE.get(cell.mark, ""))
            interval = rated.interval(column.metric)
            if interval and column.metric != "accuracy":
                ends = "-".join(f"{100 * end:.1f}" for end in interval)
                text.append(f"\n{ends}", style="not bold not italic dim")
            cells.append(text)
        table.add_row(Text(rated.label), *cells, *(Text(_short_cost(rated, c)) for c in costs))
    return table


def _short_cost(rated: Rated, column: Cost) -> str:
    """Return a cost in two digits."""
    value = rated.cost(column.key)
    if isinstance(value, float) and value < 1e4:
        return f"{value:.0f}" if value >= 10 else f"{value:.2g}"
    text = cost(rated, column).text
    return CONSOLE_ACCESS.get(text, text)


def _console_title(group: Group) -> str:
    """Return the title with the number of answers, "up to" where some rated fewer."""
    counts = {rated.num_answers for rated in group.rated}
    seeds = max(len(rated.rows) for rated in group.rated)
    n = f"{'up to ' * (len(counts) > 1)}{max(counts)} answers"
    return f"{group.title}: {n}" + (f", {seeds} seeds" if seeds > 1 else "")


def console_table(made: Table) -> RichTable:
    """Return a table for the console; numbers stay whole, with what is smaller below them."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(made.title), title_justify="left", box=SIMPLE_HEAD)
    table.padding = 0
    for at, head in enumerate(made.heads):
        if at < made.texts:
            table.add_column(head, overflow="fold")
        else:
            table.add_column(_in_lines(head), justify="right", no_wrap=True)
    for row in made.rows:
        cells = ((cell.text, f"\n{_in_lines(cell.rest)}" * bool(cell.rest)) for cell in row)
        table.add_row(*(Text(_hyphenated(text)).append(rest, "dim") for text, rest in cells))
    return table


def _hyphenated(text: str) -> str:
    """Return a name with a line break after a hyphen, where a narrow column would cut the word."""
    return re.sub(r"(?<=[a-z]-)(?=[a-z]{9})", "\n", text)


def _in_lines(text: str) -> str:
    """Return a heading, or what stands below a number, in short lines."""
    return re.sub(r"(?<=[;,]) (?=[a-z])| (?=[\[(])", "\n", text)


# --- Markdown


def markdown(report: Report) -> str:
    """Return report.md."""
    lines = [f"# {report.name}", ""]
    lines += [line for first in headlines(report) for line in (f"**{first}**", "")]
    lines += [f"{report.created}, GrACE {report.grace_version}"]
    lines += [f"Hardware: {report.hardware}", "", " ".join(how_to_read(report)), ""]
    lines += [
        line for said in (verdict(report), samples_saved(report)) if said for line in (said, "")
    ]
    lines += [line for note in notes(report) for line in (f"> {as_code(note)}", "")]
    costs = cost_columns(report)
    for group in groups(report):
        lines += [f"## {group.title}", "", *_lines(quality_table(group, costs))]
        lines += _lines(detail_table(group))
        if max(len(rated.rows) for rated in group.rated) > 1:
            lines += _lines(seed_table(group))
    for table in (
        *([transfer_table(report)] if report.transfer else []),
        *([comparison_table(report)] if report.comparisons else []),
        *(table for tables in scaling_tables(report).values() for table in tables),
    ):
        lines += [f"## {table.title}", "", table.lead, "", *_lines(table)]
    lines += [f"- **{c.title}**: {c.meaning}" for c in (*MAIN, *DETAIL)]
    lines += [f"- **{c.title}**: {c.meaning}" for c in costs]
    return "\n".join(lines) + "\n"


def _lines(table: Table) -> list[str]:
    return markdown_table(table.heads, ([*map(_in_line, row)] for row in table.rows))


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table, with an empty one after it."""
    lines = [heads, *rows]
    shown = [
        "| " + " | ".join(as_code(text.replace("|", r"\|")) for text in line) + " |"
        for line in lines
    ]
    return [shown[0], "|" + "---|" * len(heads), *shown[1:], ""]


def _in_line(cell: Cell) -> str:
    """Return all that a cell holds: the best in bold, the second in italics, "=" for a tie.

    "unclear" goes without saying, as the interval holds 0.
    """
    said = "" if cell.verdict in ("", "unclear", "equal") else f"**{cell.verdict}**"
    text = " ".join(part for part in (cell.before, _with_tie(cell.plain, cell), said) if part)
    return f"**{text}**" if cell.mark == "best" else f"*{text}*" if "second" in cell.mark else text


def _with_tie(text: str, cell: Cell) -> str:
    return f"{text} =" if cell.tied else text
