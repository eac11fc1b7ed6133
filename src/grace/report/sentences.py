"""What a report warns of, and how its numbers are read."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from grace.metrics.resampling import SEEDS_FOR_SPREAD
from grace.report.groups import groups
from grace.report.names import OURS, estimator_order, label
from grace.report.rows import Validation
from grace.report.stored import Report
from grace.report.tables import ODD, quality

ODD_MEANING = (
    f"{ODD} Chance alone makes the ECE of a finite number of answers too large; the interval takes "
    "that off, the number does not. So the number can stand at the upper end of its interval or "
    "above it, and an interval from 0.0 says that the confidence may be perfectly calibrated."
)
VALIDATED = {"log_loss": "log loss", "brier": "Brier score"}


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
            theirs = in_words(
                [f"{statistics.fmean(r.b_value for r in of):.3f}" for _, of in better]
            )
            over = f", the mean of {seeds} seeds" if seeds > 1 else ""
            return (
                f"{in_words([label(name) for name, _ in better])} "
                f"{'is' if len(better) == 1 else 'are'} better than {label(ours)}: {called} "
                f"{theirs} against {statistics.fmean(r.a_value for r in better[0][1]):.3f}{over}."
            )
    return ""


def _is_better(rows: Sequence[Validation]) -> bool:
    gain = statistics.fmean(r.a_value for r in rows) - statistics.fmean(r.b_value for r in rows)
    error = math.sqrt(sum(row.standard_error**2 for row in rows)) / len(rows)
    return gain > error


def in_words(names: Sequence[str]) -> str:
    """Return names as a list with an "and"."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def notes(report: Report) -> list[str]:
    """Return the report's notes, and one for every group in which responses were left out."""
    left_out = []
    for group in groups(report):
        counts = {r.label: r.num_missing for r in group.rated if r.num_missing}
        if not counts:
            continue
        total = max(r.num_answers + r.num_missing for r in group.rated)
        same = len(counts) == len(group.rated) and len(set(counts.values())) == 1
        each = ", ".join(f"{name} {count}" for name, count in counts.items())
        who = f"{max(counts.values())} by any estimator" if same else each
        left_out.append(
            f"{group.title}: of {total} responses, these are without a confidence: {who}. The "
            "numbers are over the rest, comparisons over what both rate."
        )
    return [*report.notes, *left_out]


def how_to_read(report: Report) -> list[str]:
    """Return the lines that say what the numbers and the marks are."""
    level = round(100 * report.evaluation.get("level", 0.95))
    bins = report.evaluation.get("bins", 10)
    found = [group.rated for group in groups(report)]
    seeds = max((len(r.rows) for rated in found for r in rated), default=1)
    over = "questions"
    if seeds >= SEEDS_FOR_SPREAD:
        over += f" and (where there are {SEEDS_FOR_SPREAD} or more) seeds"
    text = f"Percent; [a, b] is a {level} % bootstrap interval over {over}"
    if seeds > 1:
        text += ", of the mean over seeds; ± is the standard deviation over seeds"
    lines = [f"{text}. ECE uses {bins} bins."]
    if any(ODD in quality(r, "ece").rest for rated in found for r in rated):
        lines.append(ODD_MEANING)
    if report.summaries and any(len(rated) > 1 for rated in found):
        lines.append(
            "Bold: clearly the best (the paired interval of the difference excludes 0 against "
            'every other); "=": best, or not clearly worse than the best; italic: clearly the '
            'second, italic with "=": shared second. Nothing is marked where nothing is told apart.'
        )
    return lines
