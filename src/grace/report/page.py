"""report.html: one page with everything inline, for people who were not there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grace.report import names, tables
from grace.report.figures import GENERALIZATION, TARGETS, scaling_group
from grace.report.figures.canvas import INK, Figure
from grace.report.groups import comparisons, groups, transfers
from grace.report.rows import ShownExample
from grace.report.scaling.tables import scaling_tables
from grace.report.stored import Report

TEMPLATE = Path(__file__).with_name("page.html.j2")


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
    return page.render(
        report=report,
        names=names,
        tables=tables,
        groups=groups(report),
        transfers=transfers(report),
        comparisons=comparisons(report),
        scaling=scaling_tables(report),
        examples=_examples(report),
        figures=inline,
        generalization=GENERALIZATION,
        targets=TARGETS,
        scaling_group=scaling_group,
    )


def _examples(report: Report) -> list[tuple[str, list[ShownExample]]]:
    kinds = (("spread", "A few answers"), ("surest wrong", "The surest wrong answers"))
    lists = [
        (f"{title}, {task}", [e for e in report.examples if (e.kind, e.task) == (kind, task)])
        for task in dict.fromkeys(example.task for example in report.examples)
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
    svg = re.sub(r' height="[\d.]+pt"', "", svg, count=1)
    svg = re.sub(r'width="([\d.]+)pt"', r'style="width:\1pt"', svg, count=1)
    return svg.replace("<svg ", f'<svg role="img" aria-labelledby="caption-{figure.name}" ', 1)
