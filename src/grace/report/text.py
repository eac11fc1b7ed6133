"""The tables as text: Markdown for report.md, rich for the console."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from grace.report.budgets import Cell, scaling_tables
from grace.report.differences import comparisons, difference, seeds_of, transfers
from grace.report.headline import headlines
from grace.report.names import as_code, label
from grace.report.table import (
    DETAIL,
    MAIN,
    NONE,
    CostColumn,
    Group,
    Report,
    Summary,
    cell,
    columns,
    cost,
    cost_columns,
    groups,
    how_to_read,
    notes,
    number,
    summary,
)

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.table import Table


LABEL_WIDTH = 11  # "Likelihood" stays in one piece
MOST_NOTES = 4  # more would fill the console
CONSOLE_STYLE = {"best": "bold", "second": "italic", "tied second": "italic"}
CONSOLE_ACCESS = {"logprobs": "probs", "hidden states": "hidden", "weights": "weight"}
LEFT_OUT_FIRST = ("trained_parameters", "extra_requests_per_answer", "access")
"""Costs that a narrow console goes without, in this order; report.md has them."""


def render_table(report: Report) -> RenderableType:
    """Return the main tables for the console, one per task; they fit its width."""
    from rich.console import Group as Together
    from rich.text import Text

    costs = cost_columns(report)
    tables = [_Fitted(group, _on_console(costs)) for group in groups(report)]
    legend = how_to_read(report).replace("[a, b]", "a-b")
    meanings = "; ".join(f"{c.short}: {c.meaning}" for c in _on_console(costs))
    legend += f" {meanings}." if meanings else ""
    lines = [Text(line, style="dim") for line in (legend, *_few(notes(report)))]
    first = [Text(line, style="bold") for line in headlines(report)]
    return Together(Text(report["name"], style="bold"), *first, *tables, *lines)


def _on_console(costs: Sequence[CostColumn]) -> list[CostColumn]:
    return [column for column in costs if column.key != "fit_seconds"]


def _few(lines: Sequence[str]) -> list[str]:
    """Return the lines, or how many there are when they would fill the screen."""
    if len(lines) <= MOST_NOTES:
        return list(lines)
    return [f"{len(lines)} notes, on thin bins and the like, stand in report.md."]


class _Fitted(NamedTuple):
    """A group's table with as many of the costs as the console is wide enough for."""

    group: Group
    costs: list[CostColumn]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.measure import Measurement

        costs = self.costs
        table = _console_table(self.group, costs)
        for left_out in ("", *LEFT_OUT_FIRST):
            if (
                Measurement.get(console, options.update(width=1000), table).maximum
                <= options.max_width
            ):
                break
            costs = [column for column in costs if column.key != left_out]
            table = _console_table(self.group, costs, LABEL_WIDTH)
        yield table


def _console_table(
    group: Group, costs: Sequence[CostColumn], label_width: int | None = None
) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(_console_title(group)), title_justify="left", box=SIMPLE_HEAD)
    table.padding = 0
    table.add_column("Estimator", overflow="fold", width=label_width)
    for title in (c.heading.replace("Accuracy", "Acc") for c in MAIN):
        table.add_column(title, justify="right", no_wrap=True)
    for title in (column.short for column in costs):
        table.add_column(title, justify="right", no_wrap=True)
    for s in group.summaries:
        cells = []
        for column in MAIN:
            mark = s.mark.get(column.metric) or ""
            text = Text(_with_tie(s, column.metric), style=CONSOLE_STYLE.get(mark, ""))
            interval = s.interval.get(column.metric)
            if interval and column.metric != "accuracy":
                ends = "-".join(f"{100 * end:.1f}" for end in interval)
                text.append(f"\n{ends}", style="not bold not italic dim")
            cells.append(text)
        table.add_row(Text(s.label), *cells, *(Text(_short_cost(s, column)) for column in costs))
    return table


def _short_cost(summary: Summary, column: CostColumn) -> str:
    """Return a cost in two digits."""
    value = summary.costs[column.key]
    if isinstance(value, float) and value < 1e4:
        return f"{value:.0f}" if value >= 10 else f"{value:.2g}"
    text = cost(summary, column)
    return CONSOLE_ACCESS.get(text, text)


def _console_title(group: Group) -> str:
    """Return the title with the number of answers, "up to" where some rated fewer."""
    counts = {s.num_answers for s in group.summaries}
    seeds = max(len(s.rows) for s in group.summaries)
    n = f"{'up to ' * (len(counts) > 1)}{max(counts)} answers"
    return f"{group.title}: {n}" + (f", {seeds} seeds" if seeds > 1 else "")


def _with_tie(summary: Summary, metric: str) -> str:
    tied = (summary.mark.get(metric) or "").startswith("tied")
    return number(summary, metric) + (" =" if tied else "")


def markdown(report: Report) -> str:
    """Return report.md."""
    lines = [f"# {report['name']}", ""]
    lines += [line for first in headlines(report) for line in (f"**{first}**", "")]
    lines += [f"{report['created']}, GrACE {report['grace_version']}"]
    lines += [f"Hardware: {report['hardware']}", "", how_to_read(report), ""]
    lines += [line for note in notes(report) for line in (f"> {as_code(note)}", "")]
    costs = cost_columns(report)
    for group in groups(report):
        lines += [f"## {group.title}", "", *_markdown_main(group, costs), ""]
        lines += [*_markdown_detail(group), "", *_markdown_seeds(group)]
    lines += [*_markdown_transfers(report), *_markdown_comparisons(report)]
    lines += _markdown_scaling(report)
    lines += [f"- **{c.title}**: {c.meaning}" for c in (*MAIN, *DETAIL)]
    lines += [f"- **{c.title}**: {c.meaning}" for c in costs]
    return "\n".join(lines) + "\n"


def _markdown_main(group: Group, costs: Sequence[CostColumn]) -> Iterator[str]:
    titles = ["Estimator", "n", *(c.heading for c in MAIN), *(c.title for c in costs)]
    yield from _head(titles)
    for s in group.summaries:
        cells = [_marked(cell(s, c.metric), s.mark.get(c.metric)) for c in MAIN]
        missing = f" ({s.num_missing} missing)" if s.num_missing else ""
        shown = [cost(s, column) for column in costs]
        yield _line([s.label, f"{s.num_answers}{missing}", *cells, *shown])


def _marked(text: str, mark: str | None) -> str:
    """Bold the best, put the second in italics, and add "=" to those that share a place."""
    if text == NONE or not mark:
        return text
    text += " =" if mark.startswith("tied") else ""
    return f"**{text}**" if mark == "best" else f"*{text}*" if "second" in mark else text


def _markdown_detail(group: Group) -> Iterator[str]:
    shown = columns(group, DETAIL)
    yield from _head(["Estimator", *(c.heading for c in shown)])
    for s in group.summaries:
        yield _line([s.label, *(cell(s, c.metric) for c in shown)])


def _markdown_seeds(group: Group) -> Iterator[str]:
    if max(len(s.rows) for s in group.summaries) < 2:
        return
    yield from _head(["Estimator", "seed", "n", *(c.title for c in MAIN)])
    for s in group.summaries:
        for row in s.rows:
            cells = [cell(summary([row]), c.metric) for c in MAIN]
            yield _line([s.label, str(row["seed"]), str(row["n"]), *cells])
    yield ""


def _markdown_transfers(report: Report) -> Iterator[str]:
    if not report.get("transfer"):
        return
    yield from ("## Trained on another task", "")
    yield "Out of domain minus in domain, in points, on the same test questions."
    yield ""
    pairs = [f"{c.title} in → out, change" for c in MAIN[:3]]
    yield from _head(["Tested on", "trained on", "Estimator", "seeds", *pairs])
    for first, by_metric in transfers(report):
        cells = [_transfer(by_metric.get(c.metric)) for c in MAIN[:3]]
        about = [first["task"], first["train_task"], label(first["estimator"])]
        yield _line([*about, seeds_of(first), *cells])
    yield ""


def _transfer(row: Report | None) -> str:
    if row is None or row["in_domain"] is None:
        return NONE
    ends = f"{100 * row['in_domain']:.1f} → {100 * row['out_of_domain']:.1f}"
    return f"{ends}, {difference(row)}"


def _markdown_comparisons(report: Report) -> Iterator[str]:
    if not report.get("comparisons"):
        return
    yield from ("## GrACE minus the other, on the same questions", "")
    titles = [f"{c.title} (points)" for c in MAIN]
    yield from _head(["Task", "trained on", "seeds", "against", *titles])
    for first, by_metric in comparisons(report):
        cells = [difference(by_metric.get(c.metric)) for c in MAIN]
        about = [first["task"], first["train_task"], seeds_of(first), label(first["b"])]
        yield _line([*about, *cells])
    yield ""


def _markdown_scaling(report: Report) -> Iterator[str]:
    for tables in scaling_tables(report).values():
        for table in tables:
            yield from (f"## {table.title}", "", table.lead, "")
            yield from _head(table.heads)
            for row in table.rows:
                yield _line([_in_line(entry) for entry in row])
            yield ""


def _in_line(entry: Cell) -> str:
    """Return all that a cell holds; "unclear" goes without saying, as the interval holds 0."""
    said = "" if entry.verdict in ("", "unclear", "equal") else f"**{entry.verdict}**"
    return " ".join(part for part in (entry.text, entry.rest, said) if part)


def _head(titles: Sequence[str]) -> tuple[str, str]:
    return _line(titles), "|" + "---|" * len(titles)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(as_code(text.replace("|", r"\|")) for text in cells) + " |"
