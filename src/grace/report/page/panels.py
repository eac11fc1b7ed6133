"""The small drawing of one estimator on the page, coloured by the page's style."""

from __future__ import annotations

import html
from collections.abc import Iterator

import numpy as np

from grace.report.groups import Rated, pooled_bars

SIZE, HEIGHT = 100, 150  # of a square diagram, and with the histogram below it
MIDDLE, TALL = 128, 20  # the histogram's line, and its highest bars


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
