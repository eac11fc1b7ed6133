"""Rows for people: grouped by task, averaged over seeds, in percent."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

Report = dict[str, Any]

LABELS = {
    "grace": "GrACE",
    "grace-disc": "GrACE-Disc",
    "grace-pre": "GrACE-Pre",
    "grace-sft": "GrACE-SFT",
    "likelihood": "Likelihood",
    "platt": "Platt scaling",
    "p_true": "P(True)",
    "verbal": "Verbal",
    "apricot": "Apricot",
    "actcab": "ActCab",
}
"""How estimators are shown, in this order; others follow by name."""


NONE = "-"
"""Shown where there is no value."""


class Column(NamedTuple):
    """A metric as it is shown; `better` is -1 when lower is better, 1 when higher is."""

    metric: str
    title: str
    better: int
    meaning: str

    @property
    def heading(self) -> str:
        """The title with an arrow towards better."""
        return f"{self.title} {'↓' if self.better < 0 else '↑'}"


MAIN = (
    Column(
        "ece",
        "ECE",
        -1,
        "distance between confidence and accuracy over equal-width bins; chance alone raises it: "
        "intervals lean upwards",
    ),
    Column("brier", "Brier", -1, "mean squared error of the confidence as a probability"),
    Column("auroc", "AUROC", 1, "chance that a right answer is surer than a wrong one; 50 is none"),
    Column("accuracy", "Accuracy", 1, "share of right answers among those with a confidence"),
)
DETAIL = (
    Column("adaptive_ece", "Adaptive ECE", -1, "ECE over bins with equal numbers of answers"),
    Column("smooth_ece", "Smooth ECE", -1, "ECE without bins, by a kernel that fits its own width"),
    Column("aurc", "AURC", -1, "error rate averaged over answering only the surest k"),
    Column("wqd", "WQD", 1, "AUROC among several answers to the same question"),
)


class Summary(NamedTuple):
    """One estimator in one group: means over the seeds, spread if several, else the interval."""

    estimator: str
    label: str
    rows: list[Report]
    mean: dict[str, float | None]
    spread: dict[str, float | None]
    interval: dict[str, list[float] | None]

    @property
    def num_answers(self) -> int:
        """Number of responses with a confidence, over all seeds."""
        return sum(row["n"] for row in self.rows)

    @property
    def num_missing(self) -> int:
        """Number of responses without a confidence, over all seeds."""
        return sum(row.get("missing", 0) for row in self.rows)


class Group(NamedTuple):
    """The estimators of one test task, training task and backbone."""

    task: str
    train_task: str
    backbone: str
    title: str
    summaries: list[Summary]


def groups(report: Report) -> list[Group]:
    """Return the groups of a report in order, each with its estimators in order."""
    keys = sorted({(r["task"], r["train_task"], r["backbone"]) for r in report["rows"]})
    several = len({backbone for _, _, backbone in keys}) > 1
    found = []
    for task, train_task, backbone in keys:
        rows = [r for r in report["rows"] if _about(r) == (task, train_task, backbone)]
        title = task if task == train_task else f"{task} (trained on {train_task})"
        title += f", {backbone}" if several else ""
        names = sorted({row["estimator"] for row in rows}, key=estimator_order)
        summaries = [pool_seeds([r for r in rows if r["estimator"] == name]) for name in names]
        found.append(Group(task, train_task, backbone, title, summaries))
    return found


def estimator_order(name: str) -> tuple[int, str]:
    """Sort key that puts the known estimators first, in the order of `LABELS`."""
    known = list(LABELS)
    return (known.index(name) if name in LABELS else len(known), name)


def cell(summary: Summary, metric: str) -> str:
    """Return a metric in percent with its interval, or with its spread over seeds."""
    mean = summary.mean[metric]
    if mean is None:
        return NONE
    spread, interval = summary.spread[metric], summary.interval[metric]
    text = f"{100 * mean:.1f}"
    if spread is not None:
        return f"{text} ± {100 * spread:.1f}"
    if interval is None:
        return text
    return f"{text} [{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]"


def best(group: Group, column: Column) -> set[str]:
    """Return the estimators with the best mean; none when all are equal or only one is there.

    Accuracies over different answers are no contest, so there none wins when some are missing.
    """
    if column.metric == "accuracy" and any(s.num_missing for s in group.summaries):
        return set()
    means = {s.estimator: s.mean[column.metric] for s in group.summaries}
    known = {name: round(value, 4) for name, value in means.items() if value is not None}
    if len(set(known.values())) < 2:
        return set()
    top = max(column.better * value for value in known.values())
    return {name for name, value in known.items() if column.better * value == top}


def columns(group: Group, wanted: Sequence[Column]) -> list[Column]:
    """Return the columns for which the group has any value."""
    return [c for c in wanted if any(s.mean[c.metric] is not None for s in group.summaries)]


def cost(summary: Summary) -> tuple[str, str]:
    """Return seconds and extra forward tokens per answer as text; "-" where not measured."""
    seconds = summary.mean["seconds_per_answer"]
    tokens = summary.mean["extra_forward_tokens_per_answer"]
    return (
        NONE if seconds is None else f"{seconds:.3g}",
        NONE if tokens is None else f"{tokens:.4g}",
    )


def notes(report: Report) -> list[str]:
    """Return the report's notes, and one for every estimator that left responses out."""
    left_out = [
        f"{s.label} on {group.title} has no confidence for {s.num_missing} of "
        f"{s.num_answers + s.num_missing} responses; its numbers are over the rest."
        for group in groups(report)
        for s in group.summaries
        if s.num_missing
    ]
    return [*report.get("notes", []), *left_out]


def how_to_read(report: Report) -> str:
    """Return the line that says what the numbers are."""
    rule = report.get("evaluation") or {}
    level = round(100 * rule.get("level", 0.95))
    seeds = max((len(s.rows) for g in groups(report) for s in g.summaries), default=1)
    text = f"Percent; [a, b] is a {level} % bootstrap interval"
    if seeds > 1:
        text += "; ± is the standard deviation over seeds"
    return f"{text}. ECE uses {rule.get('bins', 10)} bins. Best mean in bold."


def comparisons(report: Report) -> list[tuple[Report, dict[str, Report]]]:
    """Return the comparisons with one other estimator together, by metric."""
    pairs: dict[tuple[Any, ...], dict[str, Report]] = {}
    for row in report.get("comparisons", []):
        key = (row["task"], row["train_task"], row["backbone"], row["seed"])
        pairs.setdefault((*key, estimator_order(row["b"])), {})[row["metric"]] = row
    return [(next(iter(pairs[key].values())), pairs[key]) for key in sorted(pairs)]


def difference(row: Report | None) -> str:
    """Return a difference in points with its interval."""
    if row is None or row["difference"] is None or row["interval"] is None:
        return NONE
    low, high = (100 * end for end in row["interval"])
    return f"{100 * row['difference']:+.1f} [{low:+.1f}, {high:+.1f}]"


def verdict(row: Report | None) -> str:
    """Return "better", "worse" or "unclear" (the interval holds 0) for a's side."""
    if row is None or row["interval"] is None or row["interval"][0] * row["interval"][1] <= 0:
        return "unclear"
    better = next(c.better for c in MAIN if c.metric == row["metric"])
    return "better" if better * row["interval"][0] > 0 else "worse"


def label(estimator: str) -> str:
    """Return how an estimator is shown."""
    return LABELS.get(estimator, estimator)


def pool_seeds(rows: Sequence[Report]) -> Summary:
    """Return the summary of one estimator's rows, one per seed."""
    names = [c.metric for c in (*MAIN, *DETAIL)]
    costs = ["seconds_per_answer", "extra_forward_tokens_per_answer"]
    mean: dict[str, float | None] = {}
    spread: dict[str, float | None] = {}
    for name in names + costs:
        known = [row[name] for row in rows if row.get(name) is not None]
        mean[name] = statistics.fmean(known) if known else None
        spread[name] = statistics.stdev(known) if len(known) > 1 else None
    alone = rows[0]["interval"] if len(rows) == 1 else {}
    interval = {name: alone.get(name) for name in names}
    estimator = rows[0]["estimator"]
    return Summary(estimator, label(estimator), list(rows), mean, spread, interval)


def _about(row: Report) -> tuple[str, str, str]:
    return row["task"], row["train_task"], row["backbone"]
