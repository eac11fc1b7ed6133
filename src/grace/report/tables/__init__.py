"""Tables of cells, made once and shown on the console, in Markdown, on the page and on a card."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from grace.report.names import COMPARED
from grace.report.rows.answers import Interval

NONE = "-"
"""The text of a cell without a value."""


class Cell(NamedTuple):
    """One entry of a table.

    `before` and `rest` are shown smaller, before and after the text. `verdict` rates a difference
    ("better", "worse", ...), `mark` the rank among all rows ("best", "tied", ...); `meaning`
    explains the mark. `value` is the sorting key; without one the text is. `bar` draws the low end,
    the value and the high end of an interval, in percent of the column's width.
    """

    text: str
    rest: str = ""
    verdict: str = ""
    value: float | None = None
    mark: str = ""
    meaning: str = ""
    before: str = ""
    bar: tuple[float, float, float] | None = None

    @property
    def plain(self) -> str:
        """The text and the rest."""
        return f"{self.text} {self.rest}".strip()

    @property
    def tied(self) -> bool:
        """Whether the rank is shared."""
        return self.mark.startswith("tied")

    @property
    def key(self) -> str:
        """The sorting key, as text; empty, which sorts last, where there is no value."""
        if self.value is None:
            return "" if self.text == NONE else self.text
        return repr(self.value)


class Table(NamedTuple):
    """A table with its title and a line on how to read it.

    The first `texts` columns hold text. `meanings` explains headings, `families` has the family of
    each row, and `ours` is the label of the row to highlight.
    """

    title: str
    lead: str
    heads: tuple[str, ...]
    rows: list[list[Cell]]
    texts: int = 2
    meanings: Mapping[str, str] = {}
    families: tuple[str, ...] = ()
    ours: str = ""


def percent(
    value: float | None, interval: Interval | None = None, spread: float | None = None
) -> Cell:
    """Show a fraction in percent, with its standard deviation and its interval if there are any."""
    rest = [] if spread is None else [f"± {100 * spread:.1f}"]
    rest += [] if interval is None else [f"[{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]"]
    text = NONE if value is None else f"{100 * value:.1f}"
    return Cell(text, " ".join(rest), value=value)


def points(metric: str, value: float | None, interval: Interval | None) -> Cell:
    """Show a difference in percentage points, with a verdict.

    The verdict is "better", "worse", "equal", or "unclear" where the interval holds 0 or is None.
    """
    if value is None or interval is None:
        return Cell(NONE, verdict="unclear", value=value)
    low, high = interval
    if low == high == 0:
        verdict = "equal"
    elif low * high <= 0:
        verdict = "unclear"
    else:
        verdict = "better" if COMPARED[metric] * low > 0 else "worse"
    text, first, last = (f"{round(100 * v, 1) + 0.0:+.1f}" for v in (value, low, high))
    return Cell(text, f"[{first}, {last}]", verdict, value)


def number(value: float) -> str:
    """Show a cost in three digits."""
    if 0 < value < 5e-4:
        return "<0.001"
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            return f"{value / (1e3 if unit == 'k' else size):.3g}{unit}"
    return f"{value:.4g}" if value >= 100 else f"{value:.3g}"
