"""From the inputs to the rows of a report: metrics per seed, summaries over seeds, differences."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grace import __version__
from grace.errors import UserInputError
from grace.metrics import METRICS, Calibration, calibration, estimate, evaluate, reliability, wqd
from grace.metrics.resampling import LEVEL
from grace.report.inputs import (
    EstimatorResult,
    RatedAnswer,
    ReportInput,
    Traced,
    conflict,
    setting_texts,
)
from grace.report.names import COMPARED, COSTS, OURS
from grace.report.rows import SCHEMA_VERSION, Report, from_json, group_by, to_json
from grace.report.rows.answers import (
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
from grace.report.summary.significance import (
    BOOTSTRAPPED,
    Compare,
    Paired,
    Trials,
    leader,
    marks,
    or_none,
    question_of,
)
from grace.report.summary.votes import replay_rows

HISTOGRAM_BINS = 20
NUM_EXAMPLES = 8
NUM_CONFIDENT_WRONG = 5
LONGEST_EXAMPLE = 400
UNMEASURED = {
    **dict.fromkeys((*METRICS, *Calibration._fields, "wqd", "histogram")),
    "interval": dict.fromkeys(BOOTSTRAPPED),
    "reliability": (),
}

Place = tuple[str, str, str]
"""A test task, a training task and a backbone."""

Group = dict[str, list[EstimatorResult]]
"""The results at one place: by estimator, in the order of the seeds."""


def summarize(data: ReportInput, *, bins: int = 10, resamples: int = 1000, seed: int = 0) -> Report:
    """Compute a report, rounded as in report.json."""
    if not data.results:
        raise UserInputError(f"report {data.name!r} has no results; score an estimator first")
    for key, count in Counter(result.key for result in data.results).items():
        if count > 1:
            raise conflict(key)
    trials = Trials(data.results, bins=bins, resamples=resamples, seed=seed)
    groups = grouped(data.results)
    report = Report(
        schema_version=SCHEMA_VERSION,
        name=data.name,
        created=data.created,
        grace_version=__version__,
        hardware=data.hardware,
        rows=tuple(_row(r, trials, bins) for r in sorted(data.results, key=lambda r: r.key)),
        summaries=tuple(summaries(trials, groups)),
        transfer=tuple(transfers(trials, groups)),
        **replay_rows(data.replays),
        targets=tuple(data.targets),
        target_values=tuple(_counted(*pair) for pair in sorted(data.target_values.items())),
        comparisons=tuple(comparisons(trials, groups)),
        evaluation={"bins": bins, "resamples": resamples, "level": LEVEL, "seed": seed},
        settings=setting_texts(data.settings),
        notes=(*data.notes, *_seed_notes(groups)),
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
    """Compute the fields of a row over the responses that have a confidence (`at`)."""
    confidence_N = np.array([result.confidence[i] for i in at], dtype=np.float64)
    correct_N = np.array([result.correct[i] for i in at], dtype=bool)
    questions = [question_of(result.ids[i]) for i in at] if result.ids else []
    repeated = len(set(questions)) < len(questions)
    right, wrong = (
        np.histogram(confidence_N[mask], HISTOGRAM_BINS, (0, 1))[0].tolist()
        for mask in (correct_N, ~correct_N)
    )
    return {
        **evaluate(confidence_N, correct_N, bins=bins),
        **calibration(confidence_N, correct_N, questions or None, bins=bins)._asdict(),
        "wqd": wqd(confidence_N, correct_N, questions) if repeated else None,
        "interval": {m: or_none(estimate([draws])) for m, draws in trials.draws(result).items()},
        "reliability": tuple(
            Bar(**bar._asdict()) for bar in reliability(confidence_N, correct_N, bins)
        ),
        "histogram": Histogram(right=right, wrong=wrong),
    }


def grouped(results: Sequence[EstimatorResult]) -> dict[Place, Group]:
    """Group results by place and estimator."""
    ordered = sorted(results, key=lambda r: r.key)
    by_place = group_by(ordered, lambda r: (r.task, r.train_task, r.backbone))
    return {place: group_by(group, lambda r: r.estimator) for place, group in by_place.items()}


def _seed_notes(groups: dict[Place, Group]) -> Iterator[str]:
    """Say of each task whose seeds have the same test questions that they are one experiment."""
    by_task = group_by(groups, lambda place: place[0])
    for task, places in by_task.items():
        several = [rs for place in places for rs in groups[place].values() if len(rs) > 1]
        ids = [[{question_of(i) for i in r.ids} for r in results] for results in several]
        if ids and all(one == seeds[0] and one for seeds in ids for one in seeds):
            count = max(map(len, ids))
            yield (
                f"{task}: all {count} seeds have the same test questions. They differ in training "
                f"and folds alone and count as one experiment, not as {count}."
            )


def summaries(trials: Trials, groups: dict[Place, Group]) -> Iterator[Summary]:
    """Yield a row per estimator over its seeds, with its rank in its group."""
    for place, group in groups.items():
        yield from _summaries(trials, place, group)


def _summaries(trials: Trials, place: Place, group: Group) -> Iterator[Summary]:
    @functools.cache
    def paired(a: str, b: str) -> dict[str, Paired]:
        return trials.paired(group[a], group[b])

    def compare_by(metric: str) -> Compare:
        return lambda a, b: paired(a, b).get(metric)

    estimates = {m: {name: trials.estimate(group[name], m) for name in group} for m in BOOTSTRAPPED}
    marked, first = {}, {}
    for m, better in COMPARED.items():
        means = {name: found.value for name, found in estimates[m].items()}
        marked[m] = marks(means, better, compare_by(m))
        first[m] = leader(means, better, compare_by(m))
    for name, results in group.items():
        yield Summary(
            **_about(place),
            estimator=name,
            seeds=tuple(result.seed for result in results),
            mean={m: estimates[m][name].value for m in BOOTSTRAPPED},
            spread={m: trials.spread(results, m) for m in BOOTSTRAPPED},
            interval={m: or_none(estimates[m][name]) for m in BOOTSTRAPPED},
            p_calibrated=trials.p_calibrated(results),
            mark={m: marked[m].get(name) for m in COMPARED},
            to_leader={
                m: Gap(estimator=top, **pair.gap())
                if top not in (None, name) and (pair := paired(name, top).get(m))
                else None
                for m, top in first.items()
            },
        )


def comparisons(trials: Trials, groups: dict[Place, Group]) -> Iterator[Comparison]:
    """Yield GrACE minus every other estimator of its group."""
    for place, group in groups.items():
        rivals = [name for name in group if name != OURS] if OURS in group else []
        for name in rivals:
            for metric, pair in trials.paired(group[OURS], group[name]).items():
                about = _about(place) | {"a": OURS, "b": name, "metric": metric}
                yield Comparison(**about, **pair.over_seeds())


def transfers(trials: Trials, groups: dict[Place, Group]) -> Iterator[Transfer]:
    """Yield the difference that training on another task makes, on the same test questions."""
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


def _about(place: Place) -> dict[str, Any]:
    return dict(zip(("task", "train_task", "backbone"), place, strict=True))


def _counted(task: str, targets: Sequence[float]) -> TargetValues:
    """Count how often each distinct target occurs."""
    value, count = np.unique(np.round(np.asarray(targets, dtype=float), 6), return_counts=True)
    return TargetValues(task=task, values=value.tolist(), counts=count.tolist())


def _picked(examples: Sequence[RatedAnswer]) -> Iterator[ShownExample]:
    """Yield a few examples of each task: over the range of confidence, and the surest wrong."""
    by_task = group_by(examples, lambda example: example.task)
    for task in sorted(by_task):
        rated = [e for e in by_task[task] if not math.isnan(_confidence(e))]
        rated.sort(key=lambda e: (-_confidence(e), e.question))
        places = np.linspace(0, len(rated) - 1, min(NUM_EXAMPLES, len(rated))).round()
        yield from (_shown("spread", rated[int(i)]) for i in places)
        wrong = [e for e in rated if not e.correct]
        yield from (_shown("surest wrong", e) for e in wrong[:NUM_CONFIDENT_WRONG])


def _confidence(example: RatedAnswer) -> float:
    return math.nan if example.confidence is None else example.confidence


def _shown(kind: str, example: RatedAnswer) -> ShownExample:
    short = example._replace(
        question=_short(example.question),
        answer=_short(example.answer),
        accepted=tuple(map(_short, example.accepted)),
        choices=tuple(map(_short, example.choices)),
    )
    return ShownExample(kind=kind, **short._asdict())


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= LONGEST_EXAMPLE else text[: LONGEST_EXAMPLE - 1] + "…"


def _along(traces: Sequence[Traced]) -> Iterator[TraceRow]:
    """Yield the quartiles of the confidence along right and along wrong answers, of all seeds."""
    by_name = group_by(traces, lambda trace: (trace.task, trace.backbone, trace.name))
    for (task, backbone, name), same in by_name.items():
        c_NS = np.concatenate([trace.c_NS for trace in same])
        correct_N = np.concatenate([trace.correct_N for trace in same])
        right, wrong = (_quartiles(c_NS[mask]) for mask in (correct_N, ~correct_N))
        yield TraceRow(task=task, backbone=backbone, name=name, right=right, wrong=wrong)


def _quartiles(c_NS: NDArray[np.float64]) -> Along:
    if not len(c_NS):
        return Along(n=0, low=(), median=(), high=())
    low, median, high = (tuple(row.tolist()) for row in np.quantile(c_NS, (0.25, 0.5, 0.75), 0))
    return Along(n=len(c_NS), low=low, median=median, high=high)
