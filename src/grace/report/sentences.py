"""The sentences of a report: warnings, verdicts, notes, and how to read the numbers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from grace.metrics.resampling import SEEDS_FOR_SPREAD
from grace.report.groups import comparisons, groups
from grace.report.names import BASELINE, OURS, TRUE_ECE, estimator_order, label
from grace.report.rows import EqualAccuracy, Report, Sampled, Validation, group_by
from grace.report.tables import change, points

VALIDATED = {"log_loss": "log loss", "brier": "Brier score"}


def joined(names: Sequence[str]) -> str:
    """Join names by commas and an "and"."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


# --- warnings


MOST_OFF = 0.05
"""An ECE of single samples beyond this, where they are unlike those of the fit, is an alarm."""


def headlines(report: Report) -> list[str]:
    """Return the warnings that come before every table."""
    return [*_simpler(report), *unlike_samples(report)]


def unlike_samples(report: Report) -> list[str]:
    """Return a warning for votes over samples unlike those that the confidence was fitted to."""
    lines = []
    for place, pools in group_by(report.pools, lambda pool: pool.place).items():
        off = [
            rated.ece
            for pool in pools
            if pool.temperature != pool.fitted_temperature
            for rated in pool.confidences
            if rated.estimator == OURS and rated.ece is not None
        ]
        if off and statistics.fmean(off) > MOST_OFF:
            drawn, fitted = pools[0].temperature, pools[0].fitted_temperature
            lines.append(
                f"The votes on {place[0]} are over samples at temperature {drawn:g}, of which the "
                f"confidence has an ECE of {100 * statistics.fmean(off):.1f}: it was fitted to "
                f"answers at {fitted:g}. For votes, fit it to such samples, in a new run with "
                f"--set sample.train_samples=2 --set sample.train_temperature={drawn:g}"
            )
    return lines


def _simpler(report: Report) -> list[str]:
    """Return warnings where a simpler estimator is better by log loss, else by Brier score."""
    places = group_by(report.validation, lambda row: row.place)
    lines = []
    for place, rows in places.items():
        differing = (at for at in range(len(place)) if len({other[at] for other in places}) > 1)
        where = ", ".join(place[at] for at in differing)
        if warning := _warning(rows):
            lines.append(f"On validation{f' ({where})' if where else ''}, {warning}")
    return lines


def _warning(rows: Sequence[Validation]) -> str:
    names = {row.a for row in rows}
    ours = OURS if OURS in names else min(names)
    for metric, title in VALIDATED.items():
        mine = [row for row in rows if row.a == ours and row.metric == metric]
        rivals = sorted({row.b for row in mine}, key=estimator_order)
        pairs = [(name, [row for row in mine if row.b == name]) for name in rivals]
        better = [(name, seeds) for name, seeds in pairs if _is_better(seeds)]
        if not better:
            continue
        means = [f"{statistics.fmean(row.b_value for row in seeds):.3f}" for _, seeds in better]
        our_mean = statistics.fmean(row.a_value for row in better[0][1])
        num_seeds = len({row.seed for row in mine})
        over = f", the mean of {num_seeds} seeds" if num_seeds > 1 else ""
        return (
            f"{joined([label(name) for name, _ in better])} "
            f"{'is' if len(better) == 1 else 'are'} better than {label(ours)}: {title} "
            f"{joined(means)} against {our_mean:.3f}{over}."
        )
    return ""


def _is_better(rows: Sequence[Validation]) -> bool:
    gain = statistics.fmean(r.a_value for r in rows) - statistics.fmean(r.b_value for r in rows)
    error = math.sqrt(sum(row.standard_error**2 for row in rows)) / len(rows)
    return gain > max(error, 0.0005)  # which the three digits show


# --- verdicts


class Standing(NamedTuple):
    """The labels of the methods that GrACE is better than, even with and worse than, by Brier."""

    title: str
    better: list[str]
    even: list[str]
    worse: list[str]

    def __str__(self) -> str:
        parts = (
            ("better than", self.better),
            ("not told apart from", self.even),
            ("worse than", self.worse),
        )
        return "; ".join(f"{text} {joined(names)}" for text, names in parts if names)


def standings(report: Report) -> list[Standing]:
    """Compare GrACE with every other row of the table of each task that it was trained on."""
    by_place: dict[tuple[str, str, str], Standing] = {}
    several = len({row.backbone for row in report.comparisons}) > 1
    for by_metric in comparisons(report):
        row = by_metric.get("brier")
        if row is None or row.task != row.train_task:
            continue
        title = f"{row.task}, {row.backbone}" if several else row.task
        standing = by_place.setdefault(row.place, Standing(title, [], [], []))
        sides = {"better": standing.better, "worse": standing.worse}
        sides.get(change(row).verdict, standing.even).append(label(row.b))
    return list(by_place.values())


def verdict(report: Report) -> str:
    """Count GrACE's wins, ties and losses in one sentence; "" without comparisons."""
    tasks = standings(report)
    better = sum(len(task.better) for task in tasks)
    even = sum(len(task.even) for task in tasks)
    worse = sum(len(task.worse) for task in tasks)
    total = better + even + worse
    if not total:
        return ""
    where = f"{len(tasks)} tasks" if len(tasks) > 1 else tasks[0].title
    lost = "; ".join(f"{joined(task.worse)} on {task.title}" for task in tasks if task.worse)
    which = f"{worse} (than {lost})" if worse else "none"
    return (
        f"{label(OURS)}'s Brier score is clearly better than another method's in {better} of "
        f"{total} comparisons (with every other row of the report's tables on {where}), without a "
        f"clear difference in {even}, and clearly worse in {which}."
    )


def samples_saved(report: Report) -> str:
    """Say in one sentence what confidence does for a vote; "" without a replay."""
    to_sc = [row for row in report.equal_accuracy if row.reference == BASELINE]
    stops, fitted = (
        [row for row in to_sc if row.strategy == f"{OURS}-{rule}"] for rule in ("es", "vote")
    )
    votes = [row for row in report.scaling_joint if row.strategy == f"{OURS}-sc"]
    if not votes or not stops:
        return ""
    several = len({row.backbone for row in votes}) > 1

    def where(row: Sampled) -> str:
        return f"{row.task} with {row.backbone}" if several else row.task

    def reached(rows: Sequence[EqualAccuracy]) -> str:
        needed = joined([f"{r.samples:.1f} on {where(r)}" for r in rows if r.samples is not None])
        never = joined([where(row) for row in rows if row.samples is None])
        on_average = f"with this many samples on average: {needed}" if needed else "nowhere"
        return on_average + f" (never on {never})" * bool(needed and never)

    budget = stops[0].budget
    gains = [
        (where(row), points("accuracy", row.gain, row.gain_interval))
        for row in votes
        if row.budget == budget
    ]
    clear = [cell.verdict for _, cell in gains]
    return (
        f"Over {budget} samples, votes weighted by confidence ({label(OURS)}-SC) are clearly more "
        f"often right than plain ones (SC) on {clear.count('better')} of {len(gains)} tasks, "
        f"clearly less often on {clear.count('worse') or 'none'}, in points: "
        f"{', '.join(f'{cell.plain} on {place}' for place, cell in gains)}. {label(OURS)}-ES, "
        f"which stops at the first sure sample, reaches the accuracy of {budget} plain votes "
        f"{reached(stops)}" + (f"; {label(OURS)}-vote {reached(fitted)}." if fitted else ".")
    )


# --- notes


def notes(report: Report) -> list[str]:
    """Return the report's notes, and one for every group in which confidences are missing."""
    lines = list(report.notes)
    for group in groups(report):
        counts = {label(r.estimator): r.missing for r in group.rated if r.missing}
        if not counts:
            continue
        total = max(r.n + r.missing for r in group.rated)
        same = len(counts) == len(group.rated) and len(set(counts.values())) == 1
        each = ", ".join(f"{name} {count}" for name, count in counts.items())
        who = f"{max(counts.values())} by any estimator" if same else each
        lines.append(
            f"{group.title}: of {total} responses, these have no confidence: {who}. Metrics are "
            "over the rest, comparisons over the responses that both rate."
        )
    return lines


def how_to_read(report: Report, *, spread: bool = True) -> list[str]:
    """Explain the numbers and the marks of tables, with or without the spread over seeds."""
    level = round(100 * report.evaluation["level"])
    bins = report.evaluation["bins"]
    tables = [group.rated for group in groups(report)]
    seeds = max((len(r.seeds) for rated in tables for r in rated), default=1)
    over = "questions"
    if seeds >= SEEDS_FOR_SPREAD:
        over += f" and (where there are {SEEDS_FOR_SPREAD} or more) seeds"
    text = f"Percent; [a, b] is a {level}% bootstrap interval over {over}"
    if seeds > 1:
        text += ", of the mean over seeds"
        text += "; ± is the standard deviation over seeds" * spread
    lines = [f"{text}. ECE uses {bins} bins. {TRUE_ECE}"]
    if any(len(rated) > 1 for rated in tables):
        lines.append(
            "Bold: clearly the best (the paired interval of the difference excludes 0 against "
            'every other); "=": best, or not clearly worse than the best; italic: clearly the '
            'second, italic with "=": shared second. Nothing is marked where no difference is '
            "clear."
        )
    return lines
