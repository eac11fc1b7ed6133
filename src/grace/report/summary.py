"""From confidences to what report.json holds: rows per seed, summaries over seeds, differences."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grace.errors import UserInputError
from grace.metrics import METRICS, evaluate, interval, reliability, wqd
from grace.report.inputs import EstimatorResult, Example, ReportInput
from grace.report.merging import different, flat, targets_by_task, with_tasks
from grace.report.names import COSTS
from grace.report.replays import replay_rows
from grace.report.rows import Bar, Histogram, Report, Row, Shown, TargetValues, Validation
from grace.report.significance import (
    BOOTSTRAPPED,
    Trials,
    comparisons,
    ends,
    grouped,
    question_of,
    summaries,
    transfers,
)
from grace.report.stored import from_json, to_json

SCHEMA_VERSION = 1
HISTOGRAM_BINS = 20
NUM_EXAMPLES = 8
NUM_CONFIDENT_WRONG = 5
LONGEST_EXAMPLE = 400
UNMEASURED = {**dict.fromkeys(METRICS), "interval": dict.fromkeys(BOOTSTRAPPED)}


def summarize(data: ReportInput, *, bins: int = 10, resamples: int = 1000, seed: int = 0) -> Report:
    """Return what report.json holds, rounded as it is there.

    Raises:
        UserInputError: no results, or two for the same task, estimator and seed.
    """
    if not data.results:
        raise UserInputError(f"report {data.name!r} has no results; score an estimator first")
    keys = Counter(result.key for result in data.results)
    for key in (key for key, count in keys.items() if count > 1):
        raise UserInputError(different(key))
    trials = Trials(data.results, bins=bins, resamples=resamples, seed=seed)
    groups = grouped(data.results)
    targets, examples = with_tasks(data)
    report = Report(
        schema_version=SCHEMA_VERSION,
        name=data.name,
        created=data.created,
        grace_version=data.version,
        hardware=data.hardware,
        rows=tuple(_row(r, trials, bins) for r in sorted(data.results, key=lambda r: r.key)),
        summaries=tuple(summaries(trials, groups)),
        transfer=tuple(transfers(trials, groups)),
        **replay_rows(data.replays),
        targets=tuple(targets),
        target_values=tuple(_counted(*pair) for pair in sorted(targets_by_task(data).items())),
        comparisons=tuple(comparisons(trials, groups)),
        evaluation={"bins": bins, "resamples": resamples, "level": 0.95, "seed": seed},
        settings=dict(flat(data.settings)),
        notes=tuple(data.notes),
        validation=tuple(from_json(Validation, row) for row in data.validation),
        examples=tuple(_picked(examples)),
    )
    return from_json(Report, to_json(report))


def _row(result: EstimatorResult, trials: Trials, bins: int) -> Row:
    at = result.answered()
    shared = ("task", "train_task", "backbone", "estimator", "seed", *(cost.key for cost in COSTS))
    return Row(
        **{name: getattr(result, name) for name in shared},
        n=len(at),
        missing=len(result.confidence) - len(at),
        accuracy_all=float(np.mean(result.correct)) if len(result.correct) else None,
        **(_measured(result, at, trials, bins) if at else UNMEASURED),
    )


def _measured(
    result: EstimatorResult, at: Sequence[int], trials: Trials, bins: int
) -> dict[str, Any]:
    """Return the fields of a row on the responses that have a confidence."""
    confidence_N = np.array([result.confidence[i] for i in at], dtype=np.float64)
    correct_N = np.array([result.correct[i] for i in at], dtype=bool)
    right, wrong = (
        np.histogram(confidence_N[mask], HISTOGRAM_BINS, (0, 1))[0].tolist()
        for mask in (correct_N, ~correct_N)
    )
    return {
        **evaluate(confidence_N, correct_N, bins=bins),
        "wqd": _wqd(result, at, confidence_N, correct_N),
        "interval": {m: ends(interval(m, draws_R)) for m, draws_R in trials.draws(result).items()},
        "reliability": tuple(
            Bar(**bar._asdict()) for bar in reliability(confidence_N, correct_N, bins)
        ),
        "histogram": Histogram(right=right, wrong=wrong),
    }


def _wqd(
    result: EstimatorResult,
    at: Sequence[int],
    confidence_N: NDArray[np.float64],
    correct_N: NDArray[np.bool_],
) -> float | None:
    """Return within-question discrimination, None when every question has one response."""
    questions = [question_of(result.ids[i]) for i in at] if result.ids else []
    if len(set(questions)) == len(questions):
        return None
    return wqd(confidence_N, correct_N, questions)


def _counted(task: str, targets: Sequence[float]) -> TargetValues:
    """Return the different targets of a task and how often each occurs."""
    value, count = np.unique(np.round(np.asarray(targets, dtype=float), 6), return_counts=True)
    return TargetValues(task=task, values=value.tolist(), counts=count.tolist())


def _picked(examples: Sequence[Example]) -> Iterator[Shown]:
    """Yield a few examples of each task: over the range of confidence, and the surest wrong."""
    for task in sorted({example.task for example in examples}):
        known = [(e.confidence, e) for e in examples if e.task == task and e.confidence is not None]
        known = [(c, e) for c, e in known if not math.isnan(c)]
        known.sort(key=lambda pair: (-pair[0], pair[1].question))
        places = np.linspace(0, len(known) - 1, min(NUM_EXAMPLES, len(known))).round()
        spread = [known[int(i)] for i in places]
        wrong = [pair for pair in known if not pair[1].correct][:NUM_CONFIDENT_WRONG]
        for kind, pairs in (("spread", spread), ("surest wrong", wrong)):
            for c, example in pairs:
                yield Shown(
                    kind=kind,
                    question=_short(example.question),
                    answer=_short(example.answer),
                    correct=example.correct,
                    confidence=c,
                    task=task,
                )


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= LONGEST_EXAMPLE else text[: LONGEST_EXAMPLE - 1] + "…"
