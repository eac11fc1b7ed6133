"""report.md: every table of a report as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from grace.report.groups import groups
from grace.report.names import DETAIL, FITTED, MAIN, as_code
from grace.report.rows import Report
from grace.report.sentences import headlines, how_to_read, notes, samples_saved, verdict
from grace.report.tables import (
    Cell,
    Table,
    comparison_table,
    cost_columns,
    detail_table,
    quality_table,
    scaling_tables,
    seed_table,
    transfer_table,
)


def markdown(report: Report) -> str:
    """Write a report as Markdown."""
    lines = [f"# {report.name}", ""]
    lines += _paragraphs(f"**{line}**" for line in headlines(report))
    lines += [f"{report.created}, GrACE {report.grace_version}"]
    lines += [f"Hardware: {report.hardware}", "", " ".join(how_to_read(report)), ""]
    lines += _paragraphs(filter(None, (verdict(report), samples_saved(report))))
    lines += _paragraphs(f"> {as_code(note)}" for note in notes(report))
    costs = cost_columns(report)
    for group in groups(report):
        lines += [f"## {group.title}", "", *_table(quality_table(group, costs))]
        lines += _table(detail_table(group))
        if max(len(rated.seeds) for rated in group.rated) > 1:
            lines += _table(seed_table(group))
    for table in (
        *([transfer_table(report)] if report.transfer else []),
        *([comparison_table(report)] if report.comparisons else []),
        *(table for tables in scaling_tables(report).values() for table in tables),
    ):
        lines += [f"## {table.title}", "", table.lead, "", *_table(table)]
    lines += [f"- **{c.title}**: {c.meaning}" for c in (*MAIN, *DETAIL, *FITTED, *costs)]
    return "\n".join(lines) + "\n"


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table, with an empty one after it."""
    shown = [
        "| " + " | ".join(as_code(text.replace("|", r"\|")) for text in line) + " |"
        for line in (heads, *rows)
    ]
    return [shown[0], "|" + "---|" * len(heads), *shown[1:], ""]


def _paragraphs(lines: Iterable[str]) -> list[str]:
    return [text for line in lines for text in (line, "")]


def _table(table: Table) -> list[str]:
    return markdown_table(table.heads, ([*map(_cell, row)] for row in table.rows))


def _cell(cell: Cell) -> str:
    """Show the whole of a cell: the best in bold, the second in italics, "=" for a tie."""
    verdict = "" if cell.verdict in ("", "unclear", "equal") else f"**{cell.verdict}**"
    text = cell.plain + " =" * cell.tied
    text = " ".join(part for part in (cell.before, text, verdict) if part)
    return f"**{text}**" if cell.mark == "best" else f"*{text}*" if "second" in cell.mark else text
