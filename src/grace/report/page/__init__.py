"""report.html: one page with everything inline, for people who were not there."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from grace.report import names, sentences, tables
from grace.report.figures import GENERALIZATION, TARGETS, TRACES, scaling_group
from grace.report.figures.canvas import INK, THEMED, Figure
from grace.report.groups import Group, Rated, groups, pooled_bars
from grace.report.rows import ShownExample
from grace.report.scaling.tables import scaling_tables
from grace.report.stored import Report
from grace.report.verdict import overview, samples_saved, standings, verdict

FOLDER = Path(__file__).parent
SIZE, HEIGHT = 100, 150  # of a square diagram, and with the histogram below it
MIDDLE, TALL = 128, 20  # the histogram's line, and its highest bars
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
        ("along", "While an answer is written", TRACES in context["figures"]),
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


def draw_panel(rated: Rated) -> str:
    """Return an SVG: reliability above, right and wrong answers over confidence below."""
    said = [f"Reliability of {html.escape(rated.label)}"]
    said += [f"ECE {100 * v:.1f}" for v in [rated.mean("ece")] if v is not None]
    parts = [*_bars(rated), f'<path class="even" d="M0 {SIZE}L{SIZE} 0"/>', *_answers(rated)]
    axes = f'<path class="axis" d="M0 0V{SIZE}H{SIZE}M0 {MIDDLE}H{SIZE}"/>'
    ticks = '<text x="0" y="107">0</text><text x="100" y="107" text-anchor="end">1</text>'
    return (
        f'<svg viewBox="-1 -1 {SIZE + 2} {HEIGHT}" role="img" aria-label="{", ".join(said)}">'
        f"{''.join(parts)}{axes}{ticks}</svg>"
    )


def _bars(rated: Rated) -> Iterator[str]:
    """Yield a bar for each bin, the more solid the more answers, and its gap to the confidence."""
    bars = pooled_bars(rated)
    most = max((bar.n for bar in bars), default=1)
    for bar in bars:
        accuracy, confidence = SIZE * (bar.accuracy or 0.0), SIZE * (bar.confidence or 0.0)
        x, width = SIZE * bar.low + 0.5, SIZE * (bar.high - bar.low) - 1
        solid = 0.25 + 0.75 * bar.n / most
        yield _box("answers", x, SIZE - accuracy, width, accuracy, solid)
        side = "over" if confidence > accuracy else "under"
        gap = abs(confidence - accuracy)
        yield _box(side, x, SIZE - max(accuracy, confidence), width, gap, solid)


def _answers(rated: Rated) -> Iterator[str]:
    rows = [row.histogram for row in rated.rows if row.histogram]
    if not rows:
        return
    right, wrong = (np.sum([getattr(row, name) for row in rows], 0) for name in ("right", "wrong"))
    most, width = max(*right, *wrong, 1), SIZE / len(right)
    for at, (up, down) in enumerate(zip(right, wrong, strict=True)):
        tall = TALL * up / most
        yield _box("right-bar", at * width, MIDDLE - tall, width - 0.5, tall) if up else ""
        yield _box("wrong-bar", at * width, MIDDLE, width - 0.5, TALL * down / most) if down else ""


def _box(kind: str, x: float, y: float, width: float, height: float, solid: float = 1.0) -> str:
    size = f'x="{x:.4g}" y="{y:.4g}" width="{width:.3g}" height="{height:.3g}"'
    return f'<rect class="{kind}" {size}' + (f' opacity="{solid:.2g}"/>' if solid < 1 else "/>")
