"""Rows for people: grouped by task, averaged over seeds, in percent."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from grace.metrics.resampling import SEEDS_FOR_SPREAD
from grace.report.names import estimator_order, label

Report = dict[str, Any]

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
        "distance between confidence and accuracy over equal-width bins; chance alone raises it, "
        "and its interval takes that rise off",
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


class CostColumn(NamedTuple):
    """A cost as it is shown, with a short title for the console."""

    key: str
    title: str
    short: str
    meaning: str


COSTS = (
    CostColumn(
        "seconds_per_answer",
        "s/answer",
        "s/ans",
        "seconds to get one answer and its confidence, on the hardware named above",
    ),
    CostColumn(
        "extra_forward_tokens_per_answer",
        "extra tokens",
        "+tok",
        "tokens fed to the model per answer, beyond the answer itself, to get the confidence",
    ),
    CostColumn(
        "extra_requests_per_answer",
        "extra requests",
        "+req",
        "calls of the model per answer, beyond the one that answers",
    ),
    CostColumn(
        "trained_parameters", "trained parameters", "params", "numbers that were fitted or trained"
    ),
    CostColumn(
        "fit_seconds",
        "s to fit",
        "s to fit",
        "seconds of training or fitting on the training answers, once",
    ),
    CostColumn(
        "access",
        "needs",
        "needs",
        "what the model must give: text, log-probabilities, hidden states, or its weights to train",
    ),
)


class Summary(NamedTuple):
    """One estimator in one group: means over the seeds, standard deviations, intervals, marks."""

    estimator: str
    label: str
    rows: list[Report]
    mean: dict[str, float | None]
    spread: dict[str, float | None]
    interval: dict[str, list[float] | None]
    mark: dict[str, str | None]
    to_leader: dict[str, Report | None]
    costs: Report

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

    @property
    def in_domain(self) -> bool:
        """Whether the methods were trained on the task that they are tested on."""
        return self.task == self.train_task


def groups(report: Report) -> list[Group]:
    """Return the groups of a report, in-domain ones first, each with its estimators in order."""
    keys = sorted({_about(row) for row in report["rows"]}, key=lambda k: (k[0] != k[1], k))
    several = len({backbone for _, _, backbone in keys}) > 1
    joint = {(*_about(entry), entry["estimator"]): entry for entry in report.get("summaries", [])}
    found = []
    for task, train_task, backbone in keys:
        rows = [r for r in report["rows"] if _about(r) == (task, train_task, backbone)]
        title = task if task == train_task else f"{task} (trained on {train_task})"
        title += f", {backbone}" if several else ""
        names = sorted({row["estimator"] for row in rows}, key=estimator_order)
        summaries = [
            summary(
                [row for row in rows if row["estimator"] == name],
                joint.get((task, train_task, backbone, name)),
            )
            for name in names
        ]
        found.append(Group(task, train_task, backbone, title, summaries))
    return found


def summary(rows: Sequence[Report], joint: Report | None = None) -> Summary:
    """Return the summary of one estimator from its rows, one per seed, and their joint statistics.

    Without those (a report made from report.json files) a single seed keeps its own intervals,
    several have none, and nothing is marked.
    """
    mean: dict[str, float | None] = {}
    spread: dict[str, float | None] = {}
    for name in [c.metric for c in (*MAIN, *DETAIL)]:
        known = [row[name] for row in rows if row.get(name) is not None]
        mean[name] = statistics.fmean(known) if known else None
        spread[name] = statistics.stdev(known) if len(known) > 1 else None
    alone = rows[0]["interval"] if len(rows) == 1 else {}
    joint = {"interval": alone, "mark": {}, "to_leader": {}} if joint is None else joint
    estimator = rows[0]["estimator"]
    return Summary(
        estimator,
        label(estimator),
        list(rows),
        mean,
        spread,
        joint["interval"],
        joint["mark"],
        joint["to_leader"],
        {column.key: _mean_cost(rows, column.key) for column in COSTS},
    )


def _mean_cost(rows: Sequence[Report], key: str) -> Any:
    known = [row[key] for row in rows if row.get(key) is not None]
    if not known or isinstance(known[0], str):
        return known[0] if known else None
    return statistics.fmean(known)


def number(summary: Summary, metric: str) -> str:
    """Return the mean of a metric in percent."""
    mean = summary.mean[metric]
    return NONE if mean is None else f"{100 * mean:.1f}"


def uncertainty(summary: Summary, metric: str) -> str:
    """Return the standard deviation over seeds and the interval, as far as they are known."""
    spread, interval = summary.spread[metric], summary.interval.get(metric)
    parts = [] if spread is None else [f"± {100 * spread:.1f}"]
    if interval is not None:
        parts.append(f"[{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]")
    return " ".join(parts)


def cell(summary: Summary, metric: str) -> str:
    """Return a metric in percent with its uncertainty."""
    return f"{number(summary, metric)} {uncertainty(summary, metric)}".strip()


def columns(group: Group, wanted: Sequence[Column]) -> list[Column]:
    """Return the columns for which the group has any value."""
    return [c for c in wanted if any(s.mean[c.metric] is not None for s in group.summaries)]


def cost_columns(report: Report) -> list[CostColumn]:
    """Return the costs that any estimator of the report has."""
    every = [summary.costs for group in groups(report) for summary in group.summaries]
    return [c for c in COSTS if any(costs[c.key] is not None for costs in every)]


def cost(summary: Summary, column: CostColumn) -> str:
    """Return a cost as text; "-" where not measured."""
    value = summary.costs[column.key]
    if value is None or isinstance(value, str):
        return value or NONE
    if 0 < value < 5e-4:
        return "<0.001"
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            return f"{value / (1e3 if unit == 'k' else size):.3g}{unit}"
    return f"{value:.4g}" if value >= 100 else f"{value:.3g}"


def notes(report: Report) -> list[str]:
    """Return the report's notes, and one for every group in which responses were left out."""
    left_out = []
    for group in groups(report):
        missing = [s for s in group.summaries if s.num_missing]
        if missing:
            counts = ", ".join(
                f"{s.label} {s.num_missing} of {s.num_answers + s.num_missing}" for s in missing
            )
            left_out.append(
                f"Responses on {group.title} without a confidence: {counts}. The numbers are over "
                "the rest, comparisons over what both rate."
            )
    return [*report.get("notes", []), *left_out]


def how_to_read(report: Report) -> str:
    """Return the lines that say what the numbers and the marks are."""
    rule = report.get("evaluation") or {}
    level = round(100 * rule.get("level", 0.95))
    found = [group.summaries for group in groups(report)]
    seeds = max((len(s.rows) for summaries in found for s in summaries), default=1)
    over = "questions"
    if seeds >= SEEDS_FOR_SPREAD:
        over += f" and (where there are {SEEDS_FOR_SPREAD} or more) seeds"
    text = f"Percent; [a, b] is a {level} % bootstrap interval over {over}"
    if seeds > 1:
        text += ", of the mean over seeds; ± is the standard deviation over seeds"
    text += f". ECE uses {rule.get('bins', 10)} bins."
    if report.get("summaries") and any(len(summaries) > 1 for summaries in found):
        text += (
            " Bold: clearly the best (the paired interval of the difference excludes 0 against "
            'every other); "=": best, or not clearly worse than the best; italic: clearly the '
            'second, italic with "=": shared second. '
            "Nothing is marked where nothing is told apart."
        )
    return text


def _about(row: Report) -> tuple[str, str, str]:
    return row["task"], row["train_task"], row["backbone"]
