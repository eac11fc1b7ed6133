"""report.html: one page with everything inline, for people who were not there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from grace.report import names, sentences, tables
from grace.report.figures import GENERALIZATION, TARGETS, TRACES, scaling_group
from grace.report.figures.canvas import INK, THEMED, Figure
from grace.report.groups import Group, groups
from grace.report.page.panels import draw_panel
from grace.report.rows import ShownExample
from grace.report.scaling.tables import scaling_tables
from grace.report.stored import Report
from grace.report.verdict import overview, samples_saved, standings, verdict

FOLDER = Path(__file__).parent
SHORT_COSTS = ("seconds_per_answer", "extra_forward_tokens_per_answer", "access")


def render_page(report: Report, figures: Sequence[Figure]) -> str:
    """Return the page; every text from the report is escaped, figures are inlined."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    page = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    ).from_string((FOLDER / "page.html.j2").read_text(encoding="utf-8"))
    inline: dict[str, list[tuple[Figure, Any]]] = {}
    for at, figure in enumerate(figures):
        if figure.inline:
            inline.setdefault(figure.group, []).append((figure, Markup(_inline(figure, at))))
    every = groups(report)
    home = [group for group in every if group.at_home] or every
    context: dict[str, Any] = {
        "said": [verdict(report), samples_saved(report)],
        "overview": overview(report),
        "standings": standings(report),
        "notes": sentences.notes(report),
        "home": home,
        "away": [group for group in every if group not in home],
        "ids": {
            group.title: f"task-{at}-{names.slug(group.title)}" for at, group in enumerate(every)
        },
        "scaling": scaling_tables(report),
        "examples": _examples(report),
        "costs": tables.cost_columns(report),
        "figures": inline,
        "style": Markup((FOLDER / "page.css").read_text(encoding="utf-8")),
        "script": Markup((FOLDER / "page.js").read_text(encoding="utf-8")),
    }
    short = [cost for cost in context["costs"] if cost.key in SHORT_COSTS]
    return page.render(
        report=report,
        names=names,
        tables=tables,
        sentences=sentences,
        short_costs=short,
        wide=(1, *range(len(names.MAIN) + 1, len(names.MAIN) + 2 + len(short))),
        panels=lambda group: [(r, Markup(draw_panel(r))) for r in group.rated if r.num_answers],
        generalization=GENERALIZATION,
        targets=TARGETS,
        traces=TRACES,
        scaling_group=scaling_group,
        contents=list(_contents(report, home, context)),
        **context,
    )


def _contents(
    report: Report, home: Sequence[Group], context: dict[str, Any]
) -> Iterator[tuple[str, str]]:
    """Yield the anchor and the title of every section."""
    yield "verdict", "Verdict"
    yield from ((context["ids"][group.title], group.title) for group in home)
    for name, title, there in (
        ("samples", "What more samples buy", context["scaling"]),
        ("along", "While an answer is written", report.traces),
        ("transfer", "Trained on another task", report.transfer or context["away"]),
        ("examples", "Examples", context["examples"]),
        ("meaning", "Terms and settings", True),
    ):
        if there:
            yield name, title


def _examples(report: Report) -> list[tuple[str, list[ShownExample]]]:
    kinds = (("spread", "A few answers"), ("surest wrong", "The surest wrong answers"))
    lists = [
        (f"{title}, {task}", [e for e in report.examples if (e.kind, e.task) == (kind, task)])
        for task in dict.fromkeys(example.task for example in report.examples)
        for kind, title in kinds
    ]
    return [(title, rows) for title, rows in lists if rows]


def _inline(figure: Figure, at: int) -> str:
    """Return the SVG for use inside HTML: its own ids, a title, and colours of the page."""
    svg = figure.svg[figure.svg.index("<svg") :]
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
