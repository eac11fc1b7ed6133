"""From confidences to report.json: one row per estimator, task and seed, with intervals.

Numbers are fractions rounded to 6 decimals (so that the file does not depend on the last bit of
a sum), null where a metric is undefined.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from grace.errors import UserInputError
from grace.metrics import METRICS, bootstrap, evaluate, paired_bootstrap, reliability, wqd
from grace.report.inputs import EstimatorResult, Example, ReportInput

SCHEMA_VERSION = 1
HISTOGRAM_BINS = 20
COMPARED = ("ece", "brier", "auroc")
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
    rows = [_row(result, bins, resamples, seed) for result in data.results]
    train_task = data.results[0].train_task
    return {
        "schema_version": SCHEMA_VERSION,
        "name": data.name,
        "created": data.created,
        "grace_version": data.version,
        "hardware": data.hardware,
        "rows": sort_rows(rows),
        "scaling": [],
        "targets": [_finite(row._asdict() | {"task": train_task}) for row in data.targets],
        "comparisons": _comparisons(data.results, bins, resamples, seed),
        "evaluation": {"bins": bins, "resamples": resamples, "level": 0.95, "seed": seed},
        "settings": dict(_flat(data.settings)),
        "notes": list(data.notes),
        "examples": _pick(data.examples, data.results[0].task),
    }


def combine(reports: Sequence[Report], name: str) -> Report:
    """Return one report with the rows of several (tasks or seeds of one study).

    Raises:
        UserInputError: no report, another schema version, or rows that contradict each other.
    """
    reports = _distinct(reports)
    if not reports:
        raise UserInputError("there are no reports to combine; name at least one run")
    for report in reports:
        if not isinstance(report, dict):
            raise UserInputError(f"a {type(report).__name__} is no report; make it again")
        if report.get("schema_version") != SCHEMA_VERSION:
            raise UserInputError(
                f"report {report.get('name')!r} has schema_version "
                f"{report.get('schema_version')}, expected {SCHEMA_VERSION}; make it again"
            )
    settings = {key: _joined(reports, key) for key in _settings_keys(reports)}
    return {
        "schema_version": SCHEMA_VERSION,
        "name": name,
        "created": max(report["created"] for report in reports),
        "grace_version": _unique(report["grace_version"] for report in reports),
        "hardware": _unique(report["hardware"] for report in reports),
        "rows": sort_rows(row for report in reports for row in report["rows"]),
        "scaling": _distinct(row for report in reports for row in report["scaling"]),
        "targets": _pool_targets(row for report in reports for row in report["targets"]),
        "comparisons": _distinct(c for report in reports for c in report.get("comparisons", [])),
        "evaluation": reports[0].get("evaluation", {}),
        "settings": settings,
        "notes": _notes(reports),
        "examples": _distinct(e for report in reports for e in report.get("examples", [])),
    }


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
            task, train_task, backbone, estimator, seed = row_key(row)
            raise UserInputError(
                f"two different results for {estimator} on {task} (trained on {train_task}, "
                f"{backbone}, seed {seed}); give the runs different seeds or leave one out"
            )
    return [by_key[key] for key in sorted(by_key)]


def _row(result: EstimatorResult, bins: int, resamples: int, seed: int) -> Report:
    at = result.answered()
    confidence_N = np.array([result.confidence[i] for i in at], dtype=np.float64)
    correct_N = np.array([result.correct[i] for i in at], dtype=bool)
    questions = _questions([result.ids[i] for i in at]) if result.ids else None
    row: Report = {
        "task": result.task,
        "train_task": result.train_task,
        "backbone": result.backbone,
        "estimator": result.estimator,
        "seed": result.seed,
        "n": len(at),
        "missing": len(result.confidence) - len(at),
        "accuracy_all": float(np.mean(np.asarray(result.correct, dtype=bool)))
        if len(result.correct)
        else None,
        "seconds_per_answer": result.seconds_per_answer,
        "extra_forward_tokens_per_answer": result.extra_forward_tokens_per_answer,
    }
    if not at:
        empty = dict.fromkeys([*METRICS, "wqd"])
        return (
            row | empty | {"interval": dict.fromkeys(METRICS), "reliability": [], "histogram": None}
        )
    row |= evaluate(confidence_N, correct_N, bins=bins)
    row["wqd"] = None if questions is None else wqd(confidence_N, correct_N, questions)
    intervals = bootstrap(
        confidence_N, correct_N, resamples=resamples, seed=seed, bins=bins, questions=questions
    )
    row["interval"] = {k: None if math.isnan(v[0]) else list(v) for k, v in intervals.items()}
    row["reliability"] = [bar._asdict() for bar in reliability(confidence_N, correct_N, bins)]
    row["histogram"] = {
        name: np.histogram(confidence_N[mask], HISTOGRAM_BINS, (0, 1))[0].tolist()
        for name, mask in (("right", correct_N), ("wrong", ~correct_N))
    }
    finite: Report = _finite(row)
    return finite


def _comparisons(
    results: Sequence[EstimatorResult], bins: int, resamples: int, seed: int
) -> list[Report]:
    """Compare GrACE with every other estimator on the response ids that both have a value for."""
    found = []
    for ours, theirs in itertools.product(results, results):
        same = _group(ours) == _group(theirs) and ours.ids and theirs.ids
        if ours.estimator != "grace" or theirs.estimator == "grace" or not same:
            continue
        sides = [_answered(ours), _answered(theirs)]
        if not set(sides[0][2]) & set(sides[1][2]):
            continue
        for metric in COMPARED:
            (a, right_a, ids_a), (b, right_b, ids_b) = sides
            options: dict[str, Any] = {"resamples": resamples, "seed": seed, "bins": bins}
            gap = paired_bootstrap(
                a,
                right_a,
                b,
                right_b,
                metric,
                a_ids=ids_a,
                b_ids=ids_b,
                a_questions=_questions(ids_a),
                **options,
            )
            about = dict(zip(("task", "train_task", "backbone", "seed"), _group(ours), strict=True))
            interval = None if math.isnan(gap.low) else [gap.low, gap.high]
            values = {"difference": gap.difference, "interval": interval, "n": gap.n}
            found.append(
                _finite(about | {"a": "grace", "b": theirs.estimator, "metric": metric} | values)
            )
    return sorted(found, key=lambda c: (c["task"], c["train_task"], c["seed"], c["b"]))


def _group(result: EstimatorResult) -> tuple[str, str, str, int]:
    return result.task, result.train_task, result.backbone, result.seed


def _answered(result: EstimatorResult) -> tuple[list[Any], list[bool], list[str]]:
    at = result.answered()
    return (
        [result.confidence[i] for i in at],
        [bool(result.correct[i]) for i in at],
        [result.ids[i] for i in at],
    )


def _questions(ids: Sequence[str]) -> list[str] | None:
    """Return the question of each response, or None when every question has one response."""
    questions = [response_id.rpartition("#")[0] or response_id for response_id in ids]
    return questions if len(set(questions)) < len(questions) else None


def _pick(examples: Sequence[Example], task: str) -> list[Report]:
    """Return a few examples over the whole range of confidence, then the surest wrong ones."""
    known = [e for e in examples if e.confidence is not None and not math.isnan(e.confidence)]
    known.sort(key=lambda e: (-(e.confidence or 0), e.question))
    count = min(NUM_EXAMPLES, len(known))
    spread = [known[i] for i in np.linspace(0, len(known) - 1, count).round().astype(int)]
    wrong = [e for e in known if not e.correct][:NUM_CONFIDENT_WRONG]
    return [
        _finite({"task": task, "kind": kind, **_shorten(example)})
        for kind, chosen in (("spread", spread), ("surest wrong", wrong))
        for example in chosen
    ]


def _shorten(example: Example) -> Report:
    fields = example._asdict()
    for key in ("question", "answer"):
        text = " ".join(fields[key].split())
        fields[key] = text if len(text) <= LONGEST_EXAMPLE else text[: LONGEST_EXAMPLE - 1] + "…"
    return fields


def _pool_targets(rows: Iterable[Report]) -> list[Report]:
    pooled: dict[tuple[str, float, float], Report] = {}
    for row in rows:
        key = (row.get("task", ""), row["low"], row["high"])
        if key not in pooled:
            pooled[key] = dict(row)
            continue
        old = pooled[key]
        n = old["n"] + row["n"]
        right = sum(part["n"] * (part["accuracy"] or 0.0) for part in (old, row))
        old |= {"n": n, "accuracy": round(right / n, 6) if n else None}
    return [pooled[key] for key in sorted(pooled)]


def _notes(reports: Sequence[Report]) -> list[str]:
    """Return all notes; with several reports each says which one it is about."""
    if len(reports) == 1:
        return list(reports[0].get("notes", []))
    return [f"{report['name']}: {note}" for report in reports for note in report.get("notes", [])]


def _flat(settings: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield (dotted name, text) of nested settings."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, list | tuple):
            yield prefix + key, ", ".join(map(str, value))
        else:
            yield prefix + key, str(value)


def _settings_keys(reports: Sequence[Report]) -> list[str]:
    return list(dict.fromkeys(key for report in reports for key in report.get("settings", {})))


def _joined(reports: Sequence[Report], key: str) -> str:
    return _unique(r["settings"][key] for r in reports if key in r.get("settings", {}))


def _unique(values: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(values))


def _distinct(items: Iterable[Report]) -> list[Report]:
    kept: list[Report] = []
    for item in items:
        if item not in kept:
            kept.append(item)
    return kept


def _finite(value: Any) -> Any:
    """Round floats to 6 decimals and turn nan into None, all the way down."""
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    if isinstance(value, float | np.floating):
        return round(float(value), 6) if math.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value
