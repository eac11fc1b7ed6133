"""report.html: one page with everything inline, so that it needs nothing from outside."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grace.report import names, sentences, tables
from grace.report.figures import GENERALIZATION, INK, TARGETS, THEMED, TRACES, Figure, scaling_group
from grace.report.groups import groups
from grace.report.rows import RatedAnswer, Report, group_by

FOLDER = Path(__file__).parent
SHORT_COSTS = ("seconds_per_answer", "extra_forward_tokens_per_answer", "access")


def render_page(report: Report, figures: Sequence[Figure]) -> str:
    """Render the page; every text from the report is escaped, figures are inlined."""
    return str(_template().render(_context(report, figures)))


@functools.cache
def _template() -> Any:
    """Compile the template, which takes longer than to render it."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    templates = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return templates.get_template("page.html.j2")


def _context(report: Report, figures: Sequence[Figure]) -> dict[str, Any]:
    from markupsafe import Markup

    inline = [(f, Markup(_inline(f, at))) for at, f in enumerate(figures)]
    every = groups(report)
    home = [group for group in every if group.in_domain] or every
    costs = tables.cost_columns(report)
    context = {
        "report": report,
        "names": names,
        "tables": tables,
        "sentences": sentences,
        "home": home,
        "away": [group for group in every if group not in home],
        "ids": {g.title: f"task-{at}-{names.slug(g.title)}" for at, g in enumerate(every)},
        "scaling": tables.scaling_tables(report),
        "examples": _examples(report),
        "costs": costs,
        "short_costs": [cost for cost in costs if cost.key in SHORT_COSTS],
        "figures": group_by(inline, lambda pair: pair[0].group),
        "generalization": GENERALIZATION,
        "targets": TARGETS,
        "traces": TRACES,
        "scaling_group": scaling_group,
        "style": Markup((FOLDER / "page.css").read_text(encoding="utf-8")),
        "script": Markup((FOLDER / "page.js").read_text(encoding="utf-8")),
    }
    return context | {"contents": _contents(report, context)}


def _contents(report: Report, context: dict[str, Any]) -> dict[str, str]:
    """Return the title of every section that is shown, by its anchor."""
    sections = (
        ("verdict", "Verdict", True),
        *((context["ids"][group.title], group.title, True) for group in context["home"]),
        ("samples", "What more samples buy", context["scaling"]),
        ("along", "While an answer is written", TRACES in context["figures"]),
        ("transfer", "Trained on another task", report.transfer or context["away"]),
        ("examples", "Examples", context["examples"]),
        ("meaning", "Terms and settings", True),
    )
    return {anchor: title for anchor, title, shown in sections if shown}


def _examples(report: Report) -> list[tuple[str, list[RatedAnswer]]]:
    kinds = (("spread", "A few answers"), ("surest wrong", "The surest wrong answers"))
    lists = [
        (f"{title}, {task}", [e for e in report.examples if (e.kind, e.task) == (kind, task)])
        for task in dict.fromkeys(example.task for example in report.examples)
        for kind, title in kinds
    ]
    return [(title, rows) for title, rows in lists if rows]


def _inline(figure: Figure, at: int) -> str:
    """Return the SVG for use inside HTML: with ids of its own, and in the colours of the page."""
    svg = figure.files["svg"].decode()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    prefix = f"f{at}-"
    svg = re.sub(r'\bid="', f'id="{prefix}', svg)
    svg = re.sub(r'href="#', f'href="#{prefix}', svg)
    svg = svg.replace("url(#", f"url(#{prefix}").replace(INK, "currentColor")
    for colour, name in THEMED.items():
        svg = svg.replace(colour, f"var(--{name})")
    svg = re.sub(r' height="[\d.]+pt"', "", svg, count=1)
    svg = re.sub(r'width="([\d.]+)pt"', r'style="width:\1pt"', svg, count=1)
    return svg.replace("<svg ", f'<svg role="img" aria-labelledby="caption-{figure.name}" ', 1)
