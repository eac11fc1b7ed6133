"""The cells of a report's tables, made once for every format, and its sentences."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from grace.metrics.resampling import SEEDS_FOR_SPREAD
from grace.report.groups import Group, Rated, groups
from grace.report.names import ACCESS, COMPARED, COSTS, OURS, Column, Cost, estimator_order, label
from grace.report.rows import Comparison, Ends, Transfer, Validation
from grace.report.stored import Report

NONE = "-"
"""Shown where there is no value."""

MARKS = {
    "best": "clearly the best",
    "tied": "best, or not clearly worse than the best",
    "second": "clearly the second",
    "tied second": "shares the second place",
}

VALIDATED = {"log_loss": "log loss", "brier": "Brier score"}


class Cell(NamedTuple):
    """One entry of a table.

    `before` and `rest` stand smaller before and after the text. A verdict is about a difference,
    a mark about the place among all, `meaning` says it in words. `value` is what to sort by, the
    text where it is None.
    """

    text: str
    rest: str = ""
    verdict: str = ""
    value: float | None = None
    mark: str = ""
    meaning: str = ""
    before: str = ""

    @property
    def plain(self) -> str:
        """The text and what follows it."""
        return f"{self.text} {self.rest}".strip()

    @property
    def tied(self) -> bool:
        """True where the place is shared."""
        return self.mark.startswith("tied")

    @property
    def key(self) -> str:
        """The sorting key, as text; empty, which sorts last, where there is no value."""
        if self.value is None:
            return "" if self.text == NONE else self.text
        return repr(self.value)


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
        return Cell(NONE, verdict="unclear", value=value)
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
    return made._replace(mark=mark, meaning="; ".join(said))


def cost(rated: Rated, column: Cost) -> Cell:
    """Return a cost; access sorts from the least to the most."""
    value = rated.cost(column.key)
    if value is None or isinstance(value, str):
        return Cell(value or NONE, value=ACCESS.index(value) if value else None)
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
        return Cell(NONE, verdict="unclear")
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


def cost_columns(report: Report) -> tuple[Cost, ...]:
    """Return the costs that any estimator of the report has."""
    return tuple(c for c in COSTS if any(row.cost(c.key) is not None for row in report.rows))


# --- sentences


def headlines(report: Report) -> list[str]:
    """Return a sentence for each task and backbone on which something simpler is better.

    Better is what has a smaller log loss on validation answers, else a smaller Brier score, by
    more than a standard error; over several seeds, that of the mean.
    """
    places: dict[tuple[str, str], list[Validation]] = {}
    for row in report.validation:
        places.setdefault(row.place, []).append(row)
    found = []
    for place, rows in places.items():
        where = ", ".join(
            name for at, name in enumerate(place) if len({other[at] for other in places}) > 1
        )
        if said := _said(rows):
            found.append(f"On validation{f' ({where})' if where else ''}, {said}")
    return found


def _said(rows: Sequence[Validation]) -> str:
    names = {row.a for row in rows}
    ours = OURS if OURS in names else min(names)
    for metric, called in VALIDATED.items():
        mine = [row for row in rows if row.a == ours and row.metric == metric]
        rivals = sorted({row.b for row in mine}, key=estimator_order)
        pairs = [(name, [row for row in mine if row.b == name]) for name in rivals]
        better = [(name, of) for name, of in pairs if _is_better(of)]
        if better:
            seeds = len({row.seed for row in mine})
            theirs = _and([f"{statistics.fmean(r.b_value for r in of):.3f}" for _, of in better])
            over = f", the mean of {seeds} seeds" if seeds > 1 else ""
            return (
                f"{_and([label(name) for name, _ in better])} "
                f"{'is' if len(better) == 1 else 'are'} better than {label(ours)}: {called} "
                f"{theirs} against {statistics.fmean(r.a_value for r in better[0][1]):.3f}{over}."
            )
    return ""


def _is_better(rows: Sequence[Validation]) -> bool:
    gain = statistics.fmean(r.a_value for r in rows) - statistics.fmean(r.b_value for r in rows)
    error = math.sqrt(sum(row.standard_error**2 for row in rows)) / len(rows)
    return gain > error


def _and(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def notes(report: Report) -> list[str]:
    """Return the report's notes, and one for every group in which responses were left out."""
    left_out = []
    for group in groups(report):
        counts = ", ".join(
            f"{r.label} {r.num_missing} of {r.num_answers + r.num_missing}"
            for r in group.rated
            if r.num_missing
        )
        if counts:
            left_out.append(
                f"Responses on {group.title} without a confidence: {counts}. The numbers are over "
                "the rest, comparisons over what both rate."
            )
    return [*report.notes, *left_out]


def how_to_read(report: Report) -> str:
    """Return the lines that say what the numbers and the marks are."""
    level = round(100 * report.evaluation.get("level", 0.95))
    found = [group.rated for group in groups(report)]
    seeds = max((len(r.rows) for rated in found for r in rated), default=1)
    over = "questions"
    if seeds >= SEEDS_FOR_SPREAD:
        over += f" and (where there are {SEEDS_FOR_SPREAD} or more) seeds"
    text = f"Percent; [a, b] is a {level} % bootstrap interval over {over}"
    if seeds > 1:
        text += ", of the mean over seeds; ± is the standard deviation over seeds"
    text += f". ECE uses {report.evaluation.get('bins', 10)} bins."
    if report.summaries and any(len(rated) > 1 for rated in found):
        text += (
            " Bold: clearly the best (the paired interval of the difference excludes 0 against "
            'every other); "=": best, or not clearly worse than the best; italic: clearly the '
            'second, italic with "=": shared second. '
            "Nothing is marked where nothing is told apart."
        )
    return text
