"""The tables as text: Markdown for report.md, rich for the console."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from grace.report.table import (
    DETAIL,
    MAIN,
    Group,
    Report,
    best,
    cell,
    columns,
    comparisons,
    cost,
    difference,
    groups,
    how_to_read,
    label,
    notes,
    pool_seeds,
)

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


MOST_NOTES = 4  # more would fill the console


def render_table(report: Report) -> RenderableType:
    """Return the main tables for the console, one per task; 80 columns are enough."""
    from rich.console import Group as Together
    from rich.text import Text

    tables = [_console_table(group) for group in groups(report)]
    legend = how_to_read(report).replace("[a, b]", "a-b")
    costs = "+tokens: fed to the model per answer, beyond the answer itself."
    lines = [Text(line, style="dim") for line in (f"{legend} {costs}", *_few(notes(report)))]
    return Together(Text(report["name"], style="bold"), *tables, *lines)


def _few(lines: Sequence[str]) -> list[str]:
    """Return the lines, or how many there are when they would fill the screen."""
    if len(lines) <= MOST_NOTES:
        return list(lines)
    return [f"{len(lines)} notes, on thin bins and the like, stand in report.md."]


def _console_table(group: Group) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(group.title), title_justify="left", box=SIMPLE_HEAD, padding=0)
    table.add_column("Estimator", overflow="fold")
    headings = [c.heading.replace("Accuracy", "Acc") for c in MAIN]
    for title in ("n", *headings, "s/answer", "+tokens"):
        table.add_column(title, justify="right")
    winners = [best(group, column) for column in MAIN]
    for summary in group.summaries:
        cells = []
        for column, wins in zip(MAIN, winners, strict=True):
            number, _, rest = cell(summary, column.metric).partition(" ")
            text = Text(number, style="bold" if summary.estimator in wins else "")
            if rest and column.metric != "accuracy":
                text.append("\n" + rest.strip("[]").replace(", ", "-"), style="not bold dim")
            cells.append(text)
        costs = [Text(part) for part in cost(summary)]
        table.add_row(Text(summary.label), Text(str(summary.num_answers)), *cells, *costs)
    return table


def markdown(report: Report) -> str:
    """Return report.md."""
    lines = [f"# {report['name']}", "", f"{report['created']}, GrACE {report['grace_version']}"]
    lines += [f"Hardware: {report['hardware']}", "", how_to_read(report), ""]
    lines += [line for note in notes(report) for line in (f"> {note}", "")]
    for group in groups(report):
        lines += [f"## {group.title}", "", *_markdown_main(group), "", *_markdown_detail(group), ""]
        lines += _markdown_seeds(group)
    lines += _markdown_comparisons(report)
    lines += [f"- **{c.title}**: {c.meaning}" for c in (*MAIN, *DETAIL)]
    return "\n".join(lines) + "\n"


def _markdown_main(group: Group) -> Iterator[str]:
    titles = ["Estimator", "n", *(c.heading for c in MAIN), "s/answer"]
    yield from _head([*titles, "extra tokens/answer"])
    winners = [best(group, column) for column in MAIN]
    for s in group.summaries:
        cells = [
            f"**{cell(s, c.metric)}**" if s.estimator in wins else cell(s, c.metric)
            for c, wins in zip(MAIN, winners, strict=True)
        ]
        missing = f" ({s.num_missing} missing)" if s.num_missing else ""
        yield _line([s.label, f"{s.num_answers}{missing}", *cells, *cost(s)])


def _markdown_detail(group: Group) -> Iterator[str]:
    shown = columns(group, DETAIL)
    yield from _head(["Estimator", *(c.heading for c in shown)])
    for summary in group.summaries:
        yield _line([summary.label, *(cell(summary, c.metric) for c in shown)])


def _markdown_seeds(group: Group) -> Iterator[str]:
    if max(len(summary.rows) for summary in group.summaries) < 2:
        return
    yield from _head(["Estimator", "seed", "n", *(c.title for c in MAIN)])
    for summary in group.summaries:
        for row in summary.rows:
            one = pool_seeds([row])
            cells = [cell(one, c.metric) for c in MAIN]
            yield _line([summary.label, str(row["seed"]), str(row["n"]), *cells])
    yield ""


def _markdown_comparisons(report: Report) -> Iterator[str]:
    if not report.get("comparisons"):
        return
    yield from ("## GrACE minus the other, on the same questions", "")
    yield from _head(["Task", "seed", "against", *(f"{c.title} (points)" for c in MAIN[:3])])
    for first, by_metric in comparisons(report):
        cells = [difference(by_metric.get(c.metric)) for c in MAIN[:3]]
        yield _line([first["task"], str(first["seed"]), label(first["b"]), *cells])
    yield ""


def _head(titles: Sequence[str]) -> tuple[str, str]:
    return _line(titles), "|" + "---|" * len(titles)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(text.replace("|", r"\|") for text in cells) + " |"
