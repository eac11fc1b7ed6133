"""The tables of test-time scaling: at one budget, at equal accuracy, sample by sample, promises."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from grace.report.differences import difference, verdict
from grace.report.names import label
from grace.report.scaling import About, at_budget, curves, samples_of, strategy_name
from grace.report.table import NONE, Report


class Cell(NamedTuple):
    """One entry: its text, what stands smaller beside it, a verdict, and what to sort by."""

    text: str
    rest: str = ""
    verdict: str = ""
    value: float | None = None


class Table(NamedTuple):
    """A table with what it is called and how to read it; the first columns are text."""

    title: str
    lead: str
    heads: tuple[str, ...]
    rows: list[list[Cell]]
    texts: int = 2


def scaling_tables(report: Report) -> dict[About, list[Table]]:
    """Return the tables of each (task, backbone) that the report has numbers for."""
    found = {}
    for about, of_task in curves(report).items():
        made = [
            make(rows)
            for make, rows in (
                (_budget_table, at_budget(of_task)),
                (_equal_table, _about(report, "equal_accuracy", about)),
                (_discrimination_table, _about(report, "discrimination", about)),
                (_promise_table, _about(report, "promises", about)),
            )
            if rows
        ]
        found[about] = made
    return found


def points(value: float | None, ends: Sequence[float] | None) -> Cell:
    """Return a difference in accuracy in points, marked when its interval excludes 0."""
    if value is None:
        return Cell(NONE)
    row = {"difference": value, "interval": ends, "metric": "accuracy"}
    text, _, rest = difference(row).partition(" ")
    return Cell(text, rest, verdict(row), value)


def _about(report: Report, part: str, about: About) -> list[Report]:
    return [row for row in report.get(part, []) if (row["task"], row["backbone"]) == about]


def _budget_table(rows: Sequence[Report]) -> Table:
    first = rows[0]
    own = any(row["gain_own"] is not None for row in rows)
    heads = ("Strategy", "Accuracy ↑", "Samples ↓", "Tokens ↓", "minus SC (points)")
    return Table(
        f"Up to {first['budget']} samples on {first['task']}, {first['backbone']}",
        f"{first['n']} questions{_seeds(first)}. Samples and tokens are those that were used, on "
        "average. minus SC: the paired difference in accuracy to SC over the backbone's samples "
        "with the same budget and questions; last, to SC over the same samples as the strategy's.",
        (*heads, "minus SC, same samples") if own else heads,
        [
            [
                Cell(strategy_name(row)),
                _percent(row["accuracy"], row["interval"], row["spread"]),
                _number(row["mean_samples"], row["samples_interval"]),
                Cell(f"{row['mean_tokens']:.0f}", value=row["mean_tokens"]),
                points(row["gain"], row["gain_interval"]),
                *([points(row["gain_own"], row["gain_own_interval"])] if own else []),
            ]
            for row in rows
        ],
        texts=1,
    )


def _equal_table(rows: Sequence[Report]) -> Table:
    first = rows[0]
    return Table(
        f"At equal accuracy on {first['task']}, {first['backbone']}",
        f"How many samples a strategy needs for the accuracy that another one has with up to "
        f"{first['budget']}, and how many that saves (paired). Between two budgets its curve is "
        "the straight line, which a mix of both budgets attains; "
        '"never" is where it does not get there.',
        ("Strategy", "as accurate as", "which has", "and uses", "needs ↓", "saves ↑"),
        [
            [
                Cell(strategy_name(row)),
                Cell(strategy_name(row | _reference(row))),
                _percent(row["accuracy"], row["interval"], None),
                Cell(f"{row['reference_samples']:.2f}", value=row["reference_samples"]),
                _number(row["samples"], row["samples_interval"]),
                _saved(row),
            ]
            for row in rows
        ],
    )


def _reference(row: Report) -> Report:
    return {"strategy": row["reference"], "estimator": None, "threshold": None}


def _saved(row: Report) -> Cell:
    """Return what is saved; where the curve does not get there nothing is."""
    if row["saved"] is None:
        return Cell(NONE, verdict="worse")
    low, high = row["saved_interval"]
    clear = "unclear" if low is None or low <= 0 <= high else "better" if low > 0 else "worse"
    shown = "never" if low is None else f"{low:+.2f}"
    return Cell(f"{row['saved']:+.2f}", f"[{shown}, {high:+.2f}]", clear, row["saved"])


def _discrimination_table(rows: Sequence[Report]) -> Table:
    first = rows[0]
    return Table(
        f"Single samples on {first['task']}, {first['backbone']}",
        "How good the confidences of single samples are. WQD, within-question discrimination: how "
        "often a right sample is surer than a wrong one of the same question (50 is chance); that, "
        "not AUROC over all questions, is what can change a vote.",
        ("Estimator", "rates", "n", "Accuracy", "ECE ↓", "Brier ↓", "AUROC ↑", "WQD ↑"),
        [
            [
                Cell(label(row["estimator"])),
                Cell(samples_of(row["answers"])),
                Cell(str(row["n"]), value=row["n"]),
                *(_percent(row[key], None, None) for key in ("accuracy", "ece", "brier", "auroc")),
                _percent(row["wqd"], row["wqd_interval"], None),
            ]
            for row in rows
        ],
    )


def _promise_table(rows: Sequence[Report]) -> Table:
    first = rows[0]
    deltas = sorted({row["delta"] for row in rows})
    seeds = len({row["seed"] for row in rows})
    return Table(
        f"Are promises kept? {first['task']}, {first['backbone']}",
        f"{first['splits']:,} times, a threshold was chosen on a random half of the {first['n']} "
        "questions with risk δ. Broken: what it promises is not true of all the questions, from "
        "which the half was drawn; this is what δ bounds. On the rest: not true of the other half "
        "alone, whose own noise comes on top and nobody promised away. Both are shares of all the "
        "splits; made says in how many there was a threshold at all."
        + (f" Means over {seeds} seeds." if seeds > 1 else ""),
        ("Promise", "by", *(f"δ {delta:g}: broken" for delta in deltas)),
        [
            [Cell(text), Cell(whose), *map(_kept_cell, by_delta)]
            for text, whose, by_delta in promise_rows(rows, deltas)
        ],
    )


class Kept(NamedTuple):
    """How often a promise was made and broken, as shares of the splits, over the seeds."""

    delta: float
    made: float
    broken: float
    on_rest: float


def promise_rows(
    rows: Sequence[Report], deltas: Sequence[float]
) -> Iterator[tuple[str, str, list[Kept]]]:
    """Yield every promise as text, by whose confidences, and what became of it for each delta."""
    kinds: dict[tuple[Any, ...], list[Report]] = {}
    for row in rows:
        kind = (row["answers"], row["budget"], row["target"], row["margin"])
        kinds.setdefault(kind, []).append(row)
    for same in kinds.values():
        kept = [_kept(delta, [row for row in same if row["delta"] == delta]) for delta in deltas]
        yield promise_text(same[0]), label(same[0]["answers"]), kept


def promise_text(row: Report) -> str:
    """Return what is promised in a row."""
    if row["margin"] is not None:
        loss = f"at most {100 * row['margin']:g} points below" if row["margin"] else "no worse than"
        return f"first sure one of {row['budget']}, else a vote: {loss} SC"
    which = "one answer" if row["budget"] == 1 else f"first sure one of {row['budget']}"
    return f"{which}, or none: {100 * row['target']:g} % of the answers right"


def _kept(delta: float, rows: Sequence[Report]) -> Kept:
    means = (
        statistics.fmean(row[key] for row in rows)
        for key in ("promised", "broken", "broken_on_rest")
    )
    return Kept(delta, *means)


def _kept_cell(kept: Kept) -> Cell:
    if not kept.made:
        return Cell(NONE, "never made")
    about = f"{100 * kept.on_rest:.1f} % on the rest; made in {100 * kept.made:.1f} %"
    said = "kept" if kept.broken <= kept.delta else "not kept"
    return Cell(f"{100 * kept.broken:.1f} %", about, said, kept.broken)


def _percent(value: float | None, ends: Sequence[float] | None, spread: float | None) -> Cell:
    if value is None:
        return Cell(NONE)
    rest = [] if spread is None else [f"± {100 * spread:.1f}"]
    rest += [] if ends is None else [f"[{100 * ends[0]:.1f}, {100 * ends[1]:.1f}]"]
    return Cell(f"{100 * value:.1f}", " ".join(rest), value=value)


def _number(value: float | None, ends: Sequence[float | None]) -> Cell:
    if value is None:
        return Cell("never")
    low, high = ("never" if end is None else f"{end:.2f}" for end in ends)
    return Cell(f"{value:.2f}", "" if low == high else f"[{low}, {high}]", value=value)


def _seeds(row: Report) -> str:
    return f", {len(row['seeds'])} seeds" if len(row["seeds"]) > 1 else ""
