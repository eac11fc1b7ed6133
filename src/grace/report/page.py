"""report.html: one page with everything inline, for people who were not there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grace.report.budgets import Cell, Table, scaling_tables
from grace.report.canvas import INK, Figure
from grace.report.differences import comparisons, difference, seeds_of, transfers, verdict
from grace.report.figures import GENERALIZATION, TARGETS, scaling_group
from grace.report.headline import headlines
from grace.report.inputs import ACCESS
from grace.report.names import label
from grace.report.scaling import strategy_name
from grace.report.table import (
    DETAIL,
    MAIN,
    Column,
    CostColumn,
    Group,
    Report,
    Summary,
    columns,
    cost,
    cost_columns,
    groups,
    how_to_read,
    notes,
    number,
    uncertainty,
)

TEMPLATE = Path(__file__).with_name("page.html.j2")
MARK_WORDS = {
    "best": "clearly the best",
    "tied": "best, or not clearly worse than the best",
    "second": "clearly the second",
    "tied second": "shares the second place",
}


def render_page(report: Report, figures: Sequence[Figure]) -> str:
    """Return the page; every text from the report is escaped, figures are inlined."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    page = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    ).from_string(TEMPLATE.read_text(encoding="utf-8"))
    inline: dict[str, list[tuple[Figure, Any]]] = {}
    for at, figure in enumerate(figures):
        inline.setdefault(figure.group, []).append((figure, Markup(_inline(figure, at))))
    costs = cost_columns(report)
    return page.render(
        report=report,
        how_to_read=how_to_read(report),
        notes=notes(report),
        headlines=headlines(report),
        costs=costs,
        groups=[_group(group, costs, inline.get(group.title, [])) for group in groups(report)],
        generalization=inline.get(GENERALIZATION, []),
        targets=inline.get(TARGETS, []),
        scaling=[
            {
                "title": ", ".join(about),
                "tables": [_table(table) for table in tables],
                "figures": inline.get(scaling_group(*about), []),
                "cases": _cases(report, *about),
            }
            for about, tables in scaling_tables(report).items()
        ],
        compared=[column.title for column in MAIN],
        comparisons=[
            _changes(first, label(first["b"]), by_metric, MAIN)
            for first, by_metric in comparisons(report)
        ],
        transferred=[column.title for column in MAIN[:3]],
        transfers=[
            _changes(first, label(first["estimator"]), by_metric, MAIN[:3])
            for first, by_metric in transfers(report)
        ],
        meanings=[(c.title, c.meaning) for c in [*MAIN, *DETAIL]]
        + [(c.title, c.meaning) for c in costs],
        examples=_examples(report),
    )


def _group(
    group: Group, costs: Sequence[CostColumn], figures: Sequence[tuple[Figure, Any]]
) -> dict[str, Any]:
    shown = columns(group, DETAIL)
    rows = [
        {
            "label": s.label,
            "n": s.num_answers,
            "missing": s.num_missing,
            "seeds": len(s.rows),
            "ours": s.estimator == "grace",
            "cells": [_cell(s, column) for column in MAIN],
            "costs": [(_cost_value(s.costs[c.key]), cost(s, c)) for c in costs],
            "details": [_cell(s, column) for column in shown],
        }
        for s in group.summaries
    ]
    return {"title": group.title, "main": MAIN, "details": shown, "rows": rows, "figures": figures}


def _cell(summary: Summary, column: Column) -> dict[str, str]:
    mark = summary.mark.get(column.metric) or ""
    gap = summary.to_leader.get(column.metric)
    words = MARK_WORDS.get(mark, "")
    if gap:
        against = f"{difference(gap)} points against {label(gap['estimator'])}"
        words = f"{words}; {against}" if words else against
    return {
        "value": _sort_value(summary.mean[column.metric]),
        "number": number(summary, column.metric),
        "rest": uncertainty(summary, column.metric),
        "mark": mark.replace(" ", "-"),
        "words": words,
    }


def _table(table: Table) -> dict[str, Any]:
    rows = [
        [{"cell": c, "value": _cell_value(c), "tone": _tone(c)} for c in row] for row in table.rows
    ]
    return table._asdict() | {"rows": rows}


def _cell_value(cell: Cell) -> str:
    return cell.text if cell.value is None else repr(cell.value)


def _tone(cell: Cell) -> str:
    """Return the style of a verdict: that of better, worse or neither."""
    return {"kept": "better", "not kept": "worse"}.get(cell.verdict, cell.verdict)


def _cases(report: Report, task: str, backbone: str) -> list[Report]:
    """Return the case studies of one task, with what strategies are called."""
    found = []
    for case in report.get("cases", []):
        if (case["task"], case["backbone"]) == (task, backbone):
            decisions = [d | {"name": strategy_name(d, whose=False)} for d in case["decisions"]]
            found.append(case | {"decisions": decisions, "model": label(case["answers"])})
    return found


def _sort_value(value: str | float | None) -> str:
    return "" if value is None else value if isinstance(value, str) else repr(value)


def _cost_value(value: str | float | None) -> str:
    """Return what to sort a cost by; access from the least to the most."""
    return _sort_value(ACCESS.index(value) if isinstance(value, str) else value)


def _changes(
    first: Report, name: str, by_metric: dict[str, Report], shown: Sequence[Column]
) -> dict[str, Any]:
    cells = []
    for column in shown:
        row = by_metric.get(column.metric)
        text, _, interval = difference(row).partition(" ")
        cells.append(
            {
                "value": _sort_value(row["difference"] if row else None),
                "number": text,
                "interval": interval,
                "verdict": verdict(row),
                "ends": _in_and_out(row),
            }
        )
    return {**first, "name": name, "about": seeds_of(first), "cells": cells}


def _in_and_out(row: Report | None) -> str:
    """Return "3.1 → 7.4" for a row of the out-of-domain table, nothing for others."""
    if row is None or row.get("in_domain") is None or row["out_of_domain"] is None:
        return ""
    return f"{100 * row['in_domain']:.1f} → {100 * row['out_of_domain']:.1f}"


def _examples(report: Report) -> list[tuple[str, list[Report]]]:
    kinds = (("spread", "A few answers"), ("surest wrong", "The surest wrong answers"))
    found = report.get("examples", [])
    tasks = list(dict.fromkeys(example["task"] for example in found))
    lists = [
        (
            f"{title}, {task}",
            [e for e in found if e["kind"] == kind and e["task"] == task],
        )
        for task in tasks
        for kind, title in kinds
    ]
    return [(title, rows) for title, rows in lists if rows]


def _inline(figure: Figure, at: int) -> str:
    """Return the SVG for use inside HTML: its own ids, a title, and ink that follows the page."""
    svg = figure.svg[figure.svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    prefix = f"f{at}-"
    svg = re.sub(r'\bid="', f'id="{prefix}', svg)
    svg = re.sub(r'href="#', f'href="#{prefix}', svg)
    svg = svg.replace("url(#", f"url(#{prefix}").replace(INK, "currentColor")
    svg = re.sub(
        r'<svg ([^>]*?)width="([\d.]+)pt" height="[\d.]+pt"',
        r'<svg \1style="width:\2pt"',
        svg,
        count=1,
    )
    svg = re.sub(
        r'<svg height="[\d.]+pt" ([^>]*?)width="([\d.]+)pt"',
        r'<svg \1style="width:\2pt"',
        svg,
        count=1,
    )
    return svg.replace("<svg ", f'<svg role="img" aria-labelledby="caption-{figure.name}" ', 1)
