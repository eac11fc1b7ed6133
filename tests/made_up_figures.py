"""A stand-in for drawing, which takes most of the time of a tiny run.

One figure stands for all, in every format, so that what writes, shows, hashes or copies figures has
some. It changes with everything in the report but its name, and is as large as figures are, so that
a small disk is full in the middle of them. The real ones are drawn in `tests/report`, in the demo,
and once in the run that many tests read (`conftest.finished`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grace.report.figures
from grace.report import Report, to_json
from grace.report.figures import FORMATS, TARGETS, Figure

REAL = grace.report.figures.draw
SIZE = 100_000  # bytes


def draw(report: Report) -> list[Figure]:
    """Return one figure that says which report it is of."""
    shown = to_json(report) | {"name": ""}
    seen = hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()
    svg = f'<svg width="1pt" height="1pt"><desc>{seen}{" " * SIZE}</desc></svg>'.encode()
    files = dict.fromkeys(FORMATS, svg)
    return [Figure("made-up", "Made up", "", TARGETS, files)]


@contextmanager
def made_up() -> Iterator[None]:
    """Draw nothing."""
    yield from _drawing(draw)


@contextmanager
def drawn() -> Iterator[None]:
    """Draw for real, within `made_up`."""
    yield from _drawing(REAL)


def _drawing(how: Any) -> Iterator[None]:
    before, grace.report.figures.draw = grace.report.figures.draw, how
    try:
        yield
    finally:
        grace.report.figures.draw = before
