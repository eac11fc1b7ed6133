"""The tables of a report: their cells are made here, once, for every place that shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from grace.report.groups import Group, Rated
from grace.report.names import ACCESS, COMPARED, COSTS, Column, Cost, label
from grace.report.rows import Comparison, Ends, Report, Transfer

NONE = "-"
"""Shown where there is no value."""

MARKS = {
    "best": "clearly the best",
    "tied": "best, or not clearly worse than the best",
    "second": "clearly the second",
    "tied second": "shares the second place",
}


class Cell(NamedTuple):
    """One entry of a table.

    `before` and `rest` stand smaller before and after the text. A verdict is about a difference,
    a mark about the place among all, `meaning` says it in words. `value` is what to sort by, the
    text where it is None.
    """

    text: str
    rest: str = ""
    verdict: str = ""
    value: float | str | None = None
    mark: str = ""
    meaning: str = ""
    before: str = ""

    @property
    def plain(self) -> str:
        """The text and what follows it."""
        return f"{self.text} {self.rest}".strip()

    @property
    def tied(self) -> bool:
        """Whether it shares its place."""
        return self.mark.startswith("tied")

    @property
    def key(self) -> str:
        """What to sort by, as text."""
        if isinstance(self.value, str):
            return self.value
        return self.text if self.value is None else repr(self.value)


class Table(NamedTuple):
    """A table with what it is called and how to read it; the first columns are text."""

    title: str
    lead: str
    heads: tuple[str, ...]
    rows: list[list[Cell]]
    texts: int = 2


def percent(value: float | None, ends: Ends | None = None, spread: float | None = None) -> Cell:
    """Return a share in percent, with its standard deviation and its interval if known."""
    rest = [] if spread is None else [f"± {100 * spread:.1f}"]
    rest += [] if ends is None else [f"[{100 * ends[0]:.1f}, {100 * ends[1]:.1f}]"]
    text = NONE if value is None else f"{100 * value:.1f}"
    return Cell(text, " ".join(rest), value=value)


def points(metric: str, value: float | None, ends: Ends | None) -> Cell:
    """Return a difference in percentage points and what it says.

    It is "better", "worse", "equal", or "unclear" where the interval holds 0 or is not known.
    """
    if value is None or ends is None:
        return Cell(NONE, verdict="unclear", value="" if value is None else value)
    low, high = ends
    better = COMPARED[metric] * low > 0
    clear = "unclear" if low * high <= 0 else "better" if better else "worse"
    return Cell(
        f"{100 * value:+.1f}",
        f"[{100 * low:+.1f}, {100 * high:+.1f}]",
        "equal" if low == high == 0 else clear,
        value,
    )


def quality(rated: Rated, metric: str) -> Cell:
    """Return a metric of an estimator, with its place among the others."""
    mean = rated.mean(metric)
    made = percent(mean, rated.interval(metric), rated.spread(metric))
    mark, gap = rated.mark(metric), rated.gap(metric)
    said = [MARKS[mark]] if mark else []
    if gap:
        against = points(metric, gap.difference, gap.interval).plain
        said.append(f"{against} points against {label(gap.estimator)}")
    value = "" if mean is None else mean
    return made._replace(value=value, mark=mark, meaning="; ".join(said))


def cost(rated: Rated, column: Cost) -> Cell:
    """Return a cost; access sorts from the least to the most."""
    value = rated.cost(column.key)
    if value is None or isinstance(value, str):
        return Cell(value or NONE, value=ACCESS.index(value) if value else "")
    return Cell(number(value), value=value)


def number(value: float) -> str:
    """Return a cost in three digits."""
    if 0 < value < 5e-4:
        return "<0.001"
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            return f"{value / (1e3 if unit == 'k' else size):.3g}{unit}"
    return f"{value:.4g}" if value >= 100 else f"{value:.3g}"


def change(row: Comparison | Transfer | None) -> Cell:
    """Return a change in one metric; before it, for a transfer, the values in and out of domain."""
    if row is None:
        return Cell(NONE, verdict="unclear", value="")
    made = points(row.metric, row.difference, row.interval)
    if isinstance(row, Comparison) or row.in_domain is None or row.out_of_domain is None:
        return made
    return made._replace(before=f"{100 * row.in_domain:.1f} → {100 * row.out_of_domain:.1f}")


def seeds_of(row: Comparison | Transfer) -> str:
    """Return the seeds of a change as text."""
    seeds = row.seeds or (row.seed,)
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds"


def columns(group: Group, wanted: Sequence[Column]) -> list[Column]:
    """Return the columns for which the group has any value."""
    return [c for c in wanted if any(r.mean(c.metric) is not None for r in group.rated)]


def cost_columns(report: Report) -> list[Cost]:
    """Return the costs that any estimator of the report has."""
    return [c for c in COSTS if any(row.cost(c.key) is not None for row in report.rows)]
