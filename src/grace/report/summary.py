"""The rows of a report from confidences: per seed, summaries over seeds, differences."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grace.errors import UserInputError
from grace.metrics import METRICS, evaluate, interval, reliability, wqd
from grace.report.inputs import (
    EstimatorResult,
    RatedAnswer,
    ReportInput,
    Traced,
    different,
    flat,
)
from grace.report.names import COMPARED, COSTS, OURS
from grace.report.rows import (
    Along,
    Bar,
    Comparison,
    Gap,
    Histogram,
    MetricRow,
    ShownExample,
    Summary,
    TargetValues,
    TraceRow,
    Transfer,
)
from grace.report.scaling.replays import replay_rows
from grace.report.significance import BOOTSTRAPPED, Paired, Trials, ends, leader, marks, question_of
from grace.report.stored import Report, from_json, to_json

SCHEMA_VERSION = 1
HISTOGRAM_BINS = 20
NUM_EXAMPLES = 8
NUM_CONFIDENT_WRONG = 5
LONGEST_EXAMPLE = 400
UNMEASURED = {**dict.fromkeys(METRICS), "interval": dict.fromkeys(BOOTSTRAPPED)}

Group = dict[str, list[EstimatorResult]]
"""The results of one test task, training task and backbone: by estimator, seeds in order."""

Groups = dict[tuple[str, str, str], Group]


def summarize(data: ReportInput, *, bins: int = 10, resamples: int = 1000, seed: int = 0) -> Report:
    """Return the report, rounded as in report.json.

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
        targets=tuple(data.targets),
        target_values=tuple(_counted(*pair) for pair in sorted(data.target_values.items())),
        comparisons=tuple(comparisons(trials, groups)),
        evaluation={"bins": bins, "resamples": resamples, "level": 0.95, "seed": seed},
        settings=dict(flat(data.settings)),
        notes=tuple(data.notes),
        validation=tuple(data.validation),
        examples=tuple(_picked(data.examples)),
        traces=tuple(_along(data.traces)),
    )
    return from_json(Report, to_json(report))


def _row(result: EstimatorResult, trials: Trials, bins: int) -> MetricRow:
    at = result.answered()
    shared = ("task", "train_task", "backbone", "estimator", "seed", *(cost.key for cost in COSTS))
    return MetricRow(
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


def grouped(results: Sequence[EstimatorResult]) -> Groups:
    """Return the results by (task, training task, backbone) and estimator."""
    found: Groups = {}
    for result in sorted(results, key=lambda r: r.key):
        place = (result.task, result.train_task, result.backbone)
        found.setdefault(place, {}).setdefault(result.estimator, []).append(result)
    return found


def summaries(trials: Trials, groups: Groups) -> Iterator[Summary]:
    """Yield what the seeds of each estimator say together, and how it stands in its group."""
    for place, group in groups.items():
        yield from _summaries(trials, place, group)


def _summaries(trials: Trials, place: tuple[str, str, str], group: Group) -> Iterator[Summary]:
    @functools.cache
    def paired(a: str, b: str) -> dict[str, Paired]:
        return trials.paired(group[a], group[b])

    found = {m: {name: trials.estimate(group[name], m) for name in group} for m in BOOTSTRAPPED}
    marked, first = {}, {}
    for m, better in COMPARED.items():
        mean = {name: estimate.mean for name, estimate in found[m].items()}

        def compare(a: str, b: str, metric: str = m) -> Paired | None:
            return paired(a, b).get(metric)

        marked[m], first[m] = marks(mean, better, compare), leader(mean, better, compare)
    for name, results in group.items():
        yield Summary(
            **_about(place),
            estimator=name,
            seeds=tuple(result.seed for result in results),
            mean={m: found[m][name].mean for m in BOOTSTRAPPED},
            spread={m: found[m][name].spread for m in BOOTSTRAPPED},
            interval={m: ends(found[m][name].interval) for m in BOOTSTRAPPED},
            mark={m: marked[m].get(name) for m in COMPARED},
            to_leader={
                m: Gap(estimator=top, **pair.gap())
                if top not in (None, name) and (pair := paired(name, top).get(m))
                else None
                for m, top in first.items()
            },
        )


def comparisons(trials: Trials, groups: Groups) -> Iterator[Comparison]:
    """Yield our estimator minus every other one of its group."""
    for place, group in groups.items():
        for name in [n for n in group if n != OURS] if OURS in group else []:
            for metric, pair in trials.paired(group[OURS], group[name]).items():
                about = _about(place) | {"a": OURS, "b": name, "metric": metric}
                yield Comparison(**about, **pair.over_seeds())


def transfers(trials: Trials, groups: Groups) -> Iterator[Transfer]:
    """Yield, per estimator trained on another task, what that costs on the same test questions."""
    for place, group in groups.items():
        task, train_task, backbone = place
        home = groups.get((task, task, backbone), {}) if task != train_task else {}
        for name in group:
            for metric, pair in trials.paired(group[name], home.get(name, ())).items():
                yield Transfer(
                    **_about(place),
                    estimator=name,
                    metric=metric,
                    in_domain=pair.b,
                    out_of_domain=pair.a,
                    **pair.over_seeds(),
                )


def _about(place: tuple[str, str, str]) -> dict[str, Any]:
    return dict(zip(("task", "train_task", "backbone"), place, strict=True))


def _counted(task: str, targets: Sequence[float]) -> TargetValues:
    """Return the different targets of a task and how often each occurs."""
    value, count = np.unique(np.round(np.asarray(targets, dtype=float), 6), return_counts=True)
    return TargetValues(task=task, values=value.tolist(), counts=count.tolist())


def _picked(examples: Sequence[RatedAnswer]) -> Iterator[ShownExample]:
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
                yield ShownExample(
                    kind=kind,
                    question=_short(example.question),
                    answer=_short(example.answer),
                    correct=example.correct,
                    confidence=c,
                    task=task,
                    accepted=tuple(map(_short, example.accepted)),
                    choices=tuple(map(_short, example.choices)),
                )


def _along(traces: Sequence[Traced]) -> Iterator[TraceRow]:
    """Yield the quartiles of the confidence along right and wrong answers, of all seeds."""
    places: dict[tuple[str, str, str], list[Traced]] = {}
    for trace in traces:
        places.setdefault((trace.task, trace.backbone, trace.name), []).append(trace)
    for (task, backbone, name), same in places.items():
        c_NS = np.concatenate([trace.c_NS for trace in same])
        correct_N = np.concatenate([trace.correct_N for trace in same])
        right, wrong = (_quartiles(c_NS[mask]) for mask in (correct_N, ~correct_N))
        yield TraceRow(task=task, backbone=backbone, name=name, right=right, wrong=wrong)


def _quartiles(c_NS: NDArray[np.float64]) -> Along:
    if not len(c_NS):
        return Along(n=0, low=(), median=(), high=())
    low, median, high = (tuple(row.tolist()) for row in np.quantile(c_NS, (0.25, 0.5, 0.75), 0))
    return Along(n=len(c_NS), low=low, median=median, high=high)


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= LONGEST_EXAMPLE else text[: LONGEST_EXAMPLE - 1] + "…"
