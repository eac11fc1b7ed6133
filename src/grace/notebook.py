"""The display of results: a line in a terminal, a card in a notebook. All text is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

MAX_CHARS = 60  # of an answer in a line


def line(kind: str, answer: str | None, confidence: float | None, notes: Sequence[str]) -> str:
    """Return a result as one line: `Reply('Paris', confidence 0.94)`."""
    short = answer
    if answer is not None and len(answer) > MAX_CHARS:
        short = answer[: MAX_CHARS - 3] + "..."
    return f"{kind}({', '.join([repr(short), _confidence(confidence), *notes])})"


def card(
    answer: str | None,
    confidence: float | None,
    notes: Sequence[str],
    traced: Sequence[tuple[str, float | None]] = (),
) -> str:
    """Return HTML with the answer, and its confidence as a bar."""
    shown = "".join(_coloured(*pair) for pair in traced) or escape(answer or "no answer")
    width, colour = 100 * (confidence or 0.0), _colour(confidence or 0.0)
    bar = (
        '<div style="width:12em;height:.5em;margin:.3em 0;background:#ccc">'
        f'<div style="width:{width:.0f}%;height:100%;background:{colour}"></div></div>'
    )
    about = escape(", ".join([_confidence(confidence), *notes]))
    return f'<div><div style="white-space:pre-wrap">{shown}</div>{bar}<small>{about}</small></div>'


def _confidence(value: float | None) -> str:
    return "confidence none" if value is None else f"confidence {value:.2f}"


def _coloured(text: str, c: float | None) -> str:
    if c is None:
        return escape(text)
    style = f"color:#000;background:{_colour(c)}"
    return f'<span title="{c:.2f}" style="{style}">{escape(text)}</span>'


def _colour(c: float) -> str:
    """Return a colour from red (0) to green (1)."""
    return f"hsl({120 * c:.0f},70%,65%)"
