"""The tables about votes: at one budget, at equal accuracy, and of single samples."""

from __future__ import annotations

from collections.abc import Sequence

from grace.report.groups import at_budget, curves, name_of
from grace.report.names import label, samples_of, strategy_name
from grace.report.rows import Report
from grace.report.rows.answers import Interval
from grace.report.rows.votes import Discrimination, EqualAccuracy, JointStrategy, OpenInterval
from grace.report.tables import NONE, Cell, Table, percent, points


def scaling_tables(report: Report) -> dict[tuple[str, str], list[Table]]:
    """Return the tables of each (task, backbone)."""
    tables = {}
    for place, strategies in curves(report).items():
        equal = [row for row in report.equal_accuracy if row.place == place]
        rated = [row for row in report.discrimination if row.place == place]
        tables[place] = [
            _budget_table(at_budget(strategies)),
            *([_equal_table(equal)] if equal else []),
            *([_discrimination_table(rated)] if rated else []),
        ]
    return tables


def _budget_table(rows: Sequence[JointStrategy]) -> Table:
    first = rows[0]
    rows = [row for row in rows if not _repeats(row, rows)]
    own = any(row.gain_own not in (None, row.gain) for row in rows)
    heads = ("Strategy", "Accuracy ↑", "Samples ↓", "Tokens ↓", "minus SC (points)")
    seeds = f", {len(first.seeds)} seeds" if len(first.seeds) > 1 else ""
    return Table(
        f"Up to {first.budget} samples on {first.task}, {first.backbone}",
        f"{first.n} questions{seeds}. Samples and tokens are the mean numbers used. minus SC: the "
        "paired difference in accuracy to SC over the backbone's samples, with the same budget and "
        "questions; in the last column, to SC over the samples that the strategy votes over.",
        (*heads, "minus SC, same samples") if own else heads,
        [
            [
                Cell(name_of(row)),
                percent(row.accuracy, row.interval, row.spread),
                _samples(row.mean_samples, row.samples_interval),
                Cell(f"{row.mean_tokens:.0f}", value=row.mean_tokens),
                gain(row.gain, row.gain_interval),
                *([gain(row.gain_own, row.gain_own_interval)] if own else []),
            ]
            for row in rows
        ],
        texts=1,
    )


def _repeats(row: JointStrategy, rows: Sequence[JointStrategy]) -> bool:
    """Whether a strategy over the tuned model's samples has the numbers of the one over the base's.

    Without LoRA the samples are the same.
    """
    name, _, samples = row.strategy.partition("@")
    same = ("accuracy", "interval", "mean_samples", "mean_tokens")
    return bool(samples) and any(
        other.strategy == name and all(getattr(row, at) == getattr(other, at) for at in same)
        for other in rows
    )


def _equal_table(rows: Sequence[EqualAccuracy]) -> Table:
    first = rows[0]
    return Table(
        f"At equal accuracy on {first.task}, {first.backbone}",
        "How many samples a strategy needs for the accuracy of another one with up to "
        f"{first.budget}, and how many it saves (paired). Between two budgets the curve is a "
        'straight line, which a mix of both attains. "never": it does not reach that accuracy.',
        ("Strategy", "as accurate as", "which has", "and uses", "needs ↓", "saves ↑"),
        [
            [
                Cell(name_of(row)),
                Cell(strategy_name(row.reference, None, None)),
                percent(row.accuracy, row.interval),
                Cell(f"{row.reference_samples:.2f}", value=row.reference_samples),
                _samples(row.samples, row.samples_interval),
                _saved(row),
            ]
            for row in rows
        ],
    )


def _saved(row: EqualAccuracy) -> Cell:
    """Show the samples saved; nothing where the curve does not reach the accuracy."""
    low, high = row.saved_interval
    if high is None or high < 0:
        verdict = "worse"
    else:
        verdict = "unclear" if low is None or low <= 0 else "better"
    if row.saved is None or high is None:
        return Cell(NONE, verdict=verdict)
    first = "never" if low is None else f"{low:+.2f}"
    return Cell(f"{row.saved:+.2f}", f"[{first}, {high:+.2f}]", verdict, row.saved)


def _discrimination_table(rows: Sequence[Discrimination]) -> Table:
    first = rows[0]
    return Table(
        f"Single samples on {first.task}, {first.backbone}",
        "How good the confidences of single samples are. WQD, within-question discrimination: how "
        "often a right sample is surer than a wrong one of the same question (50 is chance); that, "
        "not AUROC over all questions, is what can change a vote.",
        ("Estimator", "rates", "n", "Accuracy", "ECE ↓", "Brier ↓", "AUROC ↑", "WQD ↑"),
        [
            [
                Cell(label(row.estimator)),
                Cell(samples_of(row.answers)),
                Cell(str(row.n), value=row.n),
                *map(percent, (row.accuracy, row.ece, row.brier, row.auroc)),
                percent(row.wqd, row.wqd_interval),
            ]
            for row in rows
        ],
    )


def gain(value: float | None, interval: Interval | None) -> Cell:
    """Show a difference in accuracy; an empty cell has no verdict."""
    return Cell(NONE) if value is None else points("accuracy", value, interval)


def _samples(value: float | None, interval: OpenInterval | None) -> Cell:
    if value is None:
        return Cell("never")
    low, high = ("never" if end is None else f"{end:.2f}" for end in interval or (value, value))
    return Cell(f"{value:.2f}", "" if low == high else f"[{low}, {high}]", value=value)
