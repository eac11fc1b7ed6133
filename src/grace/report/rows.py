"""From confidences to report.json: rows per seed, summaries over seeds, differences.

Numbers are fractions rounded to 6 decimals (so that the file does not depend on the last bit of
a sum), null where a metric is undefined.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grace.errors import UserInputError
from grace.metrics import METRICS, evaluate, interval, reliability, wqd
from grace.report.cells import cells, compare_with_ours, summarize_cells, transfers
from grace.report.inputs import COSTS, EstimatorResult, Example, ReportInput
from grace.report.merging import different, flat, targets_by_task, with_tasks
from grace.report.replays import replay_rows
from grace.report.significance import BOOTSTRAPPED, Trials, question_of

SCHEMA_VERSION = 1
HISTOGRAM_BINS = 20
NUM_EXAMPLES = 8
NUM_CONFIDENT_WRONG = 5
LONGEST_EXAMPLE = 400

Report = dict[str, Any]


def summarize(data: ReportInput, *, bins: int = 10, resamples: int = 1000, seed: int = 0) -> Report:
    """Return the content of report.json.

    Raises:
        UserInputError: no results, or two for the same task, estimator and seed.
    """
    if not data.results:
        raise UserInputError(f"report {data.name!r} has no results; score an estimator first")
    keys = Counter(result.key for result in data.results)
    for key in (key for key, count in keys.items() if count > 1):
        raise UserInputError(different(key))
    trials = Trials(data.results, bins=bins, resamples=resamples, seed=seed)
    found = cells(data.results)
    targets, examples = with_tasks(data)
    report = {
        "schema_version": SCHEMA_VERSION,
        "name": data.name,
        "created": data.created,
        "grace_version": data.version,
        "hardware": data.hardware,
        "rows": sort_rows(_row(result, trials, bins) for result in data.results),
        "summaries": list(summarize_cells(trials, found)),
        "transfer": list(transfers(trials, found)),
        **replay_rows(data.replays),
        "targets": [row._asdict() for row in targets],
        "target_values": [_counted(*pair) for pair in sorted(targets_by_task(data).items())],
        "comparisons": list(compare_with_ours(trials, found)),
        "evaluation": {"bins": bins, "resamples": resamples, "level": 0.95, "seed": seed},
        "settings": dict(flat(data.settings)),
        "notes": list(data.notes),
        "validation": [dict(row) for row in data.validation],
        "examples": _pick(examples),
    }
    rounded: Report = finite(report)
    return rounded


def row_key(row: Report) -> tuple[str, str, str, str, int]:
    """Return what a row is about; no two rows of a report share it."""
    return (row["task"], row["train_task"], row["backbone"], row["estimator"], row["seed"])


def sort_rows(rows: Iterable[Report]) -> list[Report]:
    """Sort rows by what they are about, dropping exact repeats.

    Raises:
        UserInputError: two different rows are about the same thing.
    """
    by_key: dict[tuple[str, str, str, str, int], Report] = {}
    for row in rows:
        if by_key.setdefault(row_key(row), row) != row:
            raise UserInputError(different(row_key(row)))
    return [by_key[key] for key in sorted(by_key)]


def _row(result: EstimatorResult, trials: Trials, bins: int) -> Report:
    at = result.answered()
    confidence_N = np.array([result.confidence[i] for i in at], dtype=np.float64)
    correct_N = np.array([result.correct[i] for i in at], dtype=bool)
    row: Report = {
        "task": result.task,
        "train_task": result.train_task,
        "backbone": result.backbone,
        "estimator": result.estimator,
        "seed": result.seed,
        "n": len(at),
        "missing": len(result.confidence) - len(at),
        "accuracy_all": float(np.mean(result.correct)) if len(result.correct) else None,
        **{name: getattr(result, name) for name in COSTS},
    }
    if not at:
        empty = dict.fromkeys([*METRICS, "wqd"])
        intervals = {"interval": dict.fromkeys(BOOTSTRAPPED)}
        return row | empty | intervals | {"reliability": [], "histogram": None}
    row |= evaluate(confidence_N, correct_N, bins=bins)
    row["wqd"] = _wqd(result, at, confidence_N, correct_N)
    ends = {name: interval(name, draws_R) for name, draws_R in trials.draws(result).items()}
    row["interval"] = {k: None if math.isnan(v[0]) else list(v) for k, v in ends.items()}
    row["reliability"] = [bar._asdict() for bar in reliability(confidence_N, correct_N, bins)]
    row["histogram"] = {
        name: np.histogram(confidence_N[mask], HISTOGRAM_BINS, (0, 1))[0].tolist()
        for name, mask in (("right", correct_N), ("wrong", ~correct_N))
    }
    rounded: Report = finite(row)
    return rounded


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


def _counted(task: str, targets: Sequence[float]) -> Report:
    """Return the different targets of a task and how often each occurs."""
    value, count = np.unique(np.round(np.asarray(targets, dtype=float), 6), return_counts=True)
    return {"task": task, "values": value.tolist(), "counts": count.tolist()}


def _pick(examples: Sequence[Example]) -> list[Report]:
    """Return a few examples of each task: over the range of confidence, and the surest wrong."""
    picked: list[Report] = []
    for task in sorted({example.task for example in examples}):
        known = [e for e in examples if e.task == task and e.confidence is not None]
        known = sorted(
            (e for e in known if not math.isnan(e.confidence or 0)),
            key=lambda e: (-(e.confidence or 0), e.question),
        )
        places = np.linspace(0, len(known) - 1, min(NUM_EXAMPLES, len(known))).round()
        spread = [known[int(i)] for i in places]
        wrong = [e for e in known if not e.correct][:NUM_CONFIDENT_WRONG]
        picked += [{"kind": "spread", **_shorten(e)} for e in spread]
        picked += [{"kind": "surest wrong", **_shorten(e)} for e in wrong]
    return picked


def _shorten(example: Example) -> Report:
    fields = example._asdict()
    for key in ("question", "answer"):
        text = " ".join(fields[key].split())
        fields[key] = text if len(text) <= LONGEST_EXAMPLE else text[: LONGEST_EXAMPLE - 1] + "…"
    return fields


def finite(value: Any) -> Any:
    """Round floats to 6 decimals and turn what is not finite into None, all the way down."""
    if isinstance(value, dict):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    if isinstance(value, float | np.floating):
        return round(float(value), 6) if math.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value
