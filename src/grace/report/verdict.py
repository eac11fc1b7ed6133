"""What a report comes to: a small table and a sentence on each half of the mission."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import NamedTuple

from grace.report.groups import comparisons, groups
from grace.report.names import BASELINE, FAMILIES, MAIN, OURS, label
from grace.report.scaling.rows import JointStrategy
from grace.report.sentences import in_words
from grace.report.stored import Report
from grace.report.tables import Cell, Table, change, percent, points

SHOWN = (OURS, "evidence", "platt", "probe", "likelihood", "p_true", "verbal")
"""Those of an overview, as far as they rate every task; the first five are taken."""

LENGTH = 5
TOKENS = "extra_forward_tokens_per_answer"


class Standing(NamedTuple):
    """How our estimator stands to other methods in the Brier score: their labels."""

    title: str
    better: list[str]
    even: list[str]
    worse: list[str]

    def __str__(self) -> str:
        parts = ((self.better, "better than"), (self.even, "not told apart from"))
        said = [f"{text} {in_words(names)}" for names, text in parts if names]
        said += [f"worse than {in_words(self.worse)}"] if self.worse else []
        return "; ".join(said)


def overview(report: Report) -> Table | None:
    """Return a few methods with their means over the tasks, None where there is nothing to tell."""
    at_home = [group for group in groups(report) if group.at_home]
    found = [{rated.estimator: rated for rated in group.rated} for group in at_home]
    names = [name for name in SHOWN if found and all(name in of for of in found)][:LENGTH]
    if OURS not in names or len(names) < 2:
        return None
    rows = []
    for name in names:
        cells = [Cell(label(name))]
        for column in MAIN[:3]:
            values = [value for of in found if (value := of[name].mean(column.metric)) is not None]
            cells.append(percent(statistics.fmean(values) if values else None))
        rows.append([*cells, *_tokens([of[name].cost(TOKENS) for of in found])])
    tasks = f"mean of {len(found)} tasks" if len(found) > 1 else at_home[0].title
    counts = sorted({of[OURS].num_answers for of in found})
    tasks += (
        f" ({' to '.join(f'{n:,}' for n in dict.fromkeys((counts[0], counts[-1])))} answers each)"
    )
    return Table(
        "In short",
        f"Percent, {tasks}.",
        ("Method", *(column.heading for column in MAIN[:3]), "extra tokens per answer ↓"),
        rows,
        texts=1,
        meanings=(*(column.meaning for column in MAIN[:3]), ""),
        ours=label(OURS),
    )


def _tokens(costs: list[float | str | None]) -> Iterator[Cell]:
    known = [value for value in costs if isinstance(value, float | int)]
    mean = statistics.fmean(known) if known else None
    yield Cell("-") if mean is None else Cell(f"{mean:.0f}", value=mean)


def standings(report: Report) -> list[Standing]:
    """Return how our estimator stands to the other methods on each task that it was trained on."""
    found: dict[tuple[str, str, str], Standing] = {}
    several = len({row.backbone for row in report.comparisons}) > 1
    for by_metric in comparisons(report):
        row = by_metric.get("brier")
        if row is None or row.task != row.train_task or row.b in FAMILIES[label(OURS)]:
            continue
        title = f"{row.task}, {row.backbone}" if several else row.task
        standing = found.setdefault(row.place, Standing(title, [], [], []))
        side = change(row).verdict
        getattr(standing, side if side in ("better", "worse") else "even").append(label(row.b))
    return list(found.values())


def verdict(report: Report) -> str:
    """Return one sentence on all comparisons; empty where there are none."""
    found = standings(report)
    better, even, worse = (sum(len(each[at]) for each in found) for at in (1, 2, 3))
    total = better + even + worse
    if not total:
        return ""
    tasks = f"{len(found)} tasks" if len(found) > 1 else found[0].title
    lost = "; ".join(f"{in_words(each.worse)} on {each.title}" for each in found if each.worse)
    which = f"{worse} (than {lost})" if worse else "none"
    return (
        f"{label(OURS)}'s Brier score is clearly better than another method's in {better} of "
        f"{total} comparisons on {tasks}, not told apart in {even}, and clearly worse in {which}."
    )


def samples_saved(report: Report) -> str:
    """Return one sentence on what confidence does for a vote; empty without a replay."""
    votes = [row for row in report.scaling_joint if row.strategy == f"{OURS}-sc"]
    stops = [
        row
        for row in report.equal_accuracy
        if (row.strategy, row.reference) == (f"{OURS}-es", BASELINE)
    ]
    if not votes or not stops:
        return ""
    budget = stops[0].budget
    votes = [row for row in votes if row.budget == budget]
    clear = [points("accuracy", row.gain, row.gain_interval).verdict for row in votes]
    needed = ", ".join(f"{r.samples:.1f} on {r.task}" for r in stops if r.samples is not None)
    never = in_words([row.task for row in stops if row.samples is None])
    return (
        f"Over {budget} samples, votes weighted by confidence ({label(OURS)}-SC) are clearly more "
        f"often right than plain ones (SC) on {clear.count('better')} of {len(votes)} tasks, "
        f"clearly less often on {clear.count('worse') or 'none'}, in points: "
        f"{', '.join(map(_gain, votes))}. {label(OURS)}-ES, which stops at the first sure sample, "
        f"needs fewer for the accuracy of {budget} plain votes: {needed or 'nowhere'}"
        + (f"; it does not get there on {never}." if never and needed else ".")
    )


def _gain(row: JointStrategy) -> str:
    made = points("accuracy", row.gain, row.gain_interval)
    return f"{made.plain} on {row.task}"
