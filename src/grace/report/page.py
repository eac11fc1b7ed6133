"""report.html: one page with everything inline, for people who were not there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grace.report.canvas import INK, Figure
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
    verdict,
)

COSTS = ("seconds_per_answer", "extra_forward_tokens_per_answer")
TEMPLATE = Path(__file__).with_name("page.html.j2")


def render_page(report: Report, figures: Sequence[Figure]) -> str:
    """Return the page; every text from the report is escaped, figures are inlined."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    page = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    ).from_string(TEMPLATE.read_text(encoding="utf-8"))
    inline = [(figure, Markup(_inline(figure, at))) for at, figure in enumerate(figures)]
    shown = groups(report)
    titles = {group.title for group in shown}
    return page.render(
        report=report,
        how_to_read=how_to_read(report),
        notes=notes(report),
        groups=[
            _group(group, [pair for pair in inline if pair[0].group == group.title])
            for group in shown
        ],
        other_figures=[pair for pair in inline if pair[0].group not in titles],
        compared=[column.title for column in MAIN[:3]],
        comparisons=[_comparison(*pair) for pair in comparisons(report)],
        meanings=[(c.title, c.meaning) for c in (*MAIN, *DETAIL)],
        examples=_examples(report),
    )


def _group(group: Group, figures: Sequence[tuple[Figure, Any]]) -> dict[str, Any]:
    shown = [*MAIN, *columns(group, DETAIL)]
    winners = [best(group, column) for column in shown]
    rows = []
    for s in group.summaries:
        seconds, tokens = cost(s)
        cells = [
            (_sort_value(s.mean[c.metric]), *_split(cell(s, c.metric)), s.estimator in wins)
            for c, wins in zip(shown, winners, strict=True)
        ]
        costs = [
            (_sort_value(s.mean[key]), text)
            for key, text in zip(COSTS, (seconds, tokens), strict=True)
        ]
        rows.append(
            {
                "label": s.label,
                "n": s.num_answers,
                "missing": s.num_missing,
                "ours": s.estimator == "grace",
                "cells": cells,
                "costs": costs,
                "seeds": len(s.rows),
            }
        )
    return {"title": group.title, "columns": shown, "rows": rows, "figures": figures}


def _split(text: str) -> tuple[str, str]:
    """Split "9.1 [7.0, 11.4]" into the number and what is said about it."""
    number, _, rest = text.partition(" ")
    return number, rest


def _sort_value(value: float | None) -> str:
    return "" if value is None else repr(value)


def _comparison(first: Report, by_metric: dict[str, Report]) -> dict[str, Any]:
    rows = [by_metric.get(column.metric) for column in MAIN[:3]]
    cells = [
        (_sort_value(row["difference"] if row else None), *_split(difference(row)), verdict(row))
        for row in rows
    ]
    return {**first, "other": label(first["b"]), "cells": cells}


def _examples(report: Report) -> list[tuple[str, list[Report]]]:
    kinds = (("spread", "A few answers"), ("surest wrong", "The surest wrong answers"))
    found = report.get("examples", [])
    lists = [(title, [e for e in found if e["kind"] == kind]) for kind, title in kinds]
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
