"""From the inputs to the rows of a report: metrics per seed, summaries over seeds, differences."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from statistics import stdev
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from grace import __version__
from grace.errors import UserInputError
from grace.metrics import (
    METRICS,
    Bar,
    Calibration,
    Estimate,
    calibration,
    evaluate,
    reliability,
    wqd,
)
from grace.metrics.resampling import LEVEL
from grace.report.inputs import EstimatorResult, Key, Replay, ReportInput, Traced, setting_texts
from grace.report.names import BASE, BASELINE, COMPARED, COSTS, OURS, shown_budget
from grace.report.rows import (
    SCHEMA_VERSION,
    Along,
    Comparison,
    Discrimination,
    EqualAccuracy,
    Gap,
    Histogram,
    MetricRow,
    PooledConfidence,
    RatedAnswer,
    Report,
    StrategyRow,
    Summary,
    TraceRow,
    Transfer,
    from_json,
    group_by,
    mean_of,
    to_json,
)
from grace.report.significance import (
    BOOTSTRAPPED,
    Compare,
    Paired,
    Trials,
    leader,
    marks,
    or_none,
    question_of,
)
from grace.scaling import PairWins, Scaling, discrimination

HISTOGRAM_BINS = 20
NUM_EXAMPLES = 8
NUM_CONFIDENT_WRONG = 5
LONGEST_EXAMPLE = 400
UNMEASURED = {
    **dict.fromkeys((*METRICS, *Calibration._fields, "wqd", "histogram")),
    "interval": dict.fromkeys(BOOTSTRAPPED),
    "reliability": (),
}

SPREAD = (*METRICS, "brier_calibration", "brier_refinement", "wqd")
MEANS = ("accuracy_all", *SPREAD, "slope", "offset", *(c.key for c in COSTS if c.key != "access"))
"""What a summary has the mean of, and of its metrics the spread over seeds."""

Place = tuple[str, str, str]
"""A test task, a training task and a backbone."""

Group = dict[str, list[EstimatorResult]]
"""The results at one place: by estimator, in the order of the seeds."""


def summarize(data: ReportInput, *, bins: int = 10, resamples: int = 1000, seed: int = 0) -> Report:
    """Compute a report, rounded as in report.json."""
    if not data.results:
        raise UserInputError(f"report {data.name!r} has no results; score an estimator first")
    trials = Trials(data.results, bins=bins, resamples=resamples, seed=seed)
    groups = grouped(data.results)
    ordered = sorted(data.results, key=lambda result: result.key)
    row_of = {result.key: metric_row(result, trials, bins) for result in ordered}
    report = Report(
        schema_version=SCHEMA_VERSION,
        name=data.name,
        created=data.created,
        grace_version=__version__,
        hardware=data.hardware,
        rows=tuple(row_of.values()),
        summaries=tuple(summaries(trials, groups, row_of)),
        transfer=tuple(transfers(trials, groups)),
        **replay_rows(data.replays),
        targets=tuple(data.targets),
        comparisons=tuple(comparisons(trials, groups)),
        evaluation={"bins": bins, "resamples": resamples, "level": LEVEL, "seed": seed},
        settings=setting_texts(data.settings),
        notes=(*data.notes, *_seed_notes(groups)),
        validation=tuple(data.validation),
        examples=tuple(_picked(data.examples)),
        traces=tuple(_along(data.traces)),
    )
    return from_json(Report, to_json(report))


def metric_row(result: EstimatorResult, trials: Trials, bins: int) -> MetricRow:
    """Compute the row of one estimator for one seed."""
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
        "interval": {m: or_none(trials.estimate([result], m)) for m in trials.draws(result)},
        "reliability": tuple(reliability(confidence_N, correct_N, bins)),
        "histogram": Histogram(right=right, wrong=wrong),
    }


def grouped(results: Sequence[EstimatorResult]) -> dict[Place, Group]:
    """Group results by place and estimator."""
    ordered = sorted(results, key=lambda r: r.key)
    by_place = group_by(ordered, lambda r: (r.task, r.train_task, r.backbone))
    return {place: group_by(group, lambda r: r.estimator) for place, group in by_place.items()}


def _seed_notes(groups: dict[Place, Group]) -> Iterator[str]:
    """Say of each task whose seeds have the same test questions what the seeds change."""
    by_task = group_by(groups, lambda place: place[0])
    for task, places in by_task.items():
        several = [rs for place in places for rs in groups[place].values() if len(rs) > 1]
        ids = [[{question_of(i) for i in r.ids} for r in results] for results in several]
        if ids and all(one == seeds[0] and one for seeds in ids for one in seeds):
            count = max(map(len, ids))
            if any(len({r.training for r in results}) > 1 for results in several):
                what = "They differ in their training questions; each test question counts once."
            else:
                what = (
                    "They differ in training and folds alone and count as one experiment, not as "
                    f"{count}."
                )
            yield f"{task}: all {count} seeds have the same test questions. {what}"


def summaries(
    trials: Trials, groups: dict[Place, Group], row_of: Mapping[Key, MetricRow]
) -> Iterator[Summary]:
    """Yield a row per estimator over its seeds, with its rank in its group."""
    for group in groups.values():
        yield from _summaries(trials, group, row_of)


def _summaries(trials: Trials, group: Group, row_of: Mapping[Key, MetricRow]) -> Iterator[Summary]:
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
            **_over_seeds([row_of[result.key] for result in results]),
            seeds=tuple(result.seed for result in results),
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


def _over_seeds(rows: Sequence[MetricRow]) -> dict[str, Any]:
    """Return the fields of one estimator's rows that are sums, means or the same over its seeds."""
    first, rated = rows[0], [row for row in rows if row.n]
    values = {name: [v for row in rows if _is_known(v := getattr(row, name))] for name in MEANS}
    return {
        **{name: getattr(first, name) for name in ("task", "train_task", "backbone", "estimator")},
        **{name: mean_of(known) for name, known in values.items()},
        "spread": {m: stdev(values[m]) if len(values[m]) > 1 else None for m in SPREAD},
        "seed": first.seed if len(rows) == 1 else None,
        "n": sum(row.n for row in rows),
        "missing": sum(row.missing for row in rows),
        "access": next((row.access for row in rows if row.access), None),
        "reliability": tuple(
            _pooled(bars) for bars in zip(*(row.reliability for row in rated), strict=True)
        ),
        "histogram": _added([row.histogram for row in rated if row.histogram]),
    }


def _is_known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _pooled(bars: Sequence[Bar]) -> Bar:
    """Return a bar of a reliability diagram for the answers of all seeds."""
    n = sum(bar.n for bar in bars)
    confidence, accuracy = (
        sum(bar.n * (getattr(bar, name) or 0.0) for bar in bars) / n if n else None
        for name in ("confidence", "accuracy")
    )
    return Bar(bars[0].low, bars[0].high, n, confidence, accuracy)


def _added(histograms: Sequence[Histogram]) -> Histogram | None:
    """Return the counts of all seeds together, None without answers."""
    sides = [[getattr(one, side) for one in histograms] for side in ("right", "wrong")]
    right, wrong = (tuple(map(sum, zip(*counts, strict=True))) for counts in sides)
    return Histogram(right=right, wrong=wrong) if histograms else None


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


def _picked(examples: Sequence[RatedAnswer]) -> Iterator[RatedAnswer]:
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


def _shown(kind: str, example: RatedAnswer) -> RatedAnswer:
    return dataclasses.replace(
        example,
        kind=kind,
        question=_short(example.question),
        answer=_short(example.answer),
        accepted=tuple(map(_short, example.accepted)),
        choices=tuple(map(_short, example.choices)),
    )


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


REFERENCES = ("sc", "asc", "esc")
"""The strategies whose accuracy the others are to reach with fewer samples."""

POOLED = ("accuracy", "ece", "brier", "auroc")
Joint = TypeVar("Joint", StrategyRow, EqualAccuracy)
SeedWins = tuple[PooledConfidence, Sequence[Hashable], PairWins]


def replay_rows(replays: Sequence[Replay]) -> dict[str, Any]:
    """Return the fields of a report that replays fill."""
    runs = group_by(replays, lambda replay: (replay.task, replay.backbone, replay.name))
    groups = runs.values()  # the replays of a group differ in the seed alone
    # Variants of a run share the rows about their backbone's samples: each is kept once.
    return {
        "scaling": tuple(dict.fromkeys(row for one in replays for row in strategy_rows([one]))),
        "scaling_joint": _widest(row for group in groups for row in strategy_rows(group)),
        "equal_accuracy": _widest(row for group in groups for row in equal_rows(group)),
        "pools": tuple(dict.fromkeys(row for replay in replays for row in replay.pools)),
        "discrimination": tuple(_discrimination(replays)),
    }


def equal_rows(group: Sequence[Replay]) -> Iterator[EqualAccuracy]:
    """Yield the samples that strategies with a threshold need for the accuracy of `REFERENCES`."""
    scaling, first = _scaling(group), group[0]
    budget = shown_budget(scaling.budgets)
    for curve in scaling.curves.values():
        if curve.estimator is None or curve.threshold is None:
            continue
        references = [*REFERENCES, *(f"{name}@{first.answers[curve.name]}" for name in REFERENCES)]
        for reference in (name for name in references if name in scaling.curves):
            reach = scaling.reach(curve.name, reference, budget)
            yield EqualAccuracy(
                task=first.task,
                backbone=first.backbone,
                strategy=curve.name,
                estimator=curve.estimator,
                threshold=curve.threshold,
                reference=reference,
                budget=budget,
                seeds=_seeds(group),
                accuracy=reach.accuracy.value,
                interval=_ends(reach.accuracy),
                reference_samples=reach.reference_samples.value,
                reached=reach.reached,
                **_estimated("samples", reach.samples),
                **_estimated("saved", reach.saved),
            )


def strategy_rows(group: Sequence[Replay]) -> Iterator[StrategyRow]:
    """Yield every strategy at every budget; `gain` is to SC over base, `gain_own` over its own."""
    scaling, first = _scaling(group), group[0]
    for name, budget in itertools.product(scaling.curves, scaling.budgets):
        curve, answers = scaling.curves[name], first.answers[name]
        accuracy = scaling.estimate(name, budget)
        samples = scaling.estimate(name, budget, "samples")
        gain = gain_own = None
        if BASELINE in scaling.curves:
            gain = scaling.difference(name, BASELINE, budget)
        own = f"{BASELINE}@{first.name}"
        if answers != BASE and own in scaling.curves:
            gain_own = scaling.difference(name, own, budget)
        yield StrategyRow(
            task=first.task,
            backbone=first.backbone,
            strategy=name,
            answers=answers,
            estimator=curve.estimator,
            budget=budget,
            threshold=curve.threshold,
            n=scaling.num_questions,
            accuracy=accuracy.value,
            interval=_ends(accuracy),
            spread=scaling.spread(name, budget),
            mean_samples=samples.value,
            samples_interval=_ends(samples),
            mean_tokens=scaling.estimate(name, budget, "tokens").value,
            **_estimated("gain", gain),
            **_estimated("gain_own", gain_own),
            used=tuple(scaling.used(name, budget)[1 : budget + 1].tolist()),
            seeds=_seeds(group),
        )


def _discrimination(replays: Sequence[Replay]) -> Iterator[Discrimination]:
    """Yield how good each estimator's confidences in single samples are, over all seeds."""
    by_estimator: dict[tuple[str, str, str, str], dict[int, SeedWins]] = {}
    for replay in replays:
        for pool in replay.pools:
            for row in pool.confidences:
                wins = replay.wins.get((pool.answers, row.estimator))
                if wins is not None:
                    key = (replay.task, replay.backbone, pool.answers, row.estimator)
                    by_seed = by_estimator.setdefault(key, {})
                    by_seed.setdefault(replay.seed, (row, replay.questions, wins))
    for (task, backbone, answers, estimator), by_seed in by_estimator.items():
        rows, questions, every_wins = zip(*by_seed.values(), strict=True)
        wqd = discrimination(questions, every_wins)
        means: dict[str, Any] = {m: mean_of(getattr(row, m) for row in rows) for m in POOLED}
        yield Discrimination(
            task=task,
            backbone=backbone,
            answers=answers,
            estimator=estimator,
            seeds=tuple(by_seed),
            n=sum(row.n for row in rows),
            **means,
            **_estimated("wqd", wqd),
        )


def _widest(rows: Iterable[Joint]) -> tuple[Joint, ...]:
    """Keep, of the rows about the same thing, the one over the most seeds."""
    widest: dict[tuple[Any, ...], Joint] = {}
    for row in rows:
        key = (row.place, row.strategy, getattr(row, "reference", None), row.budget)
        if len(row.seeds) > len(widest.setdefault(key, row).seeds):
            widest[key] = row
    return tuple(widest.values())


def _scaling(group: Sequence[Replay]) -> Scaling:
    return Scaling([one.curves for one in group], [one.questions for one in group])


def _seeds(group: Sequence[Replay]) -> tuple[int, ...]:
    return tuple(replay.seed for replay in group)


def _ends(estimate: Estimate) -> tuple[float, float]:
    return estimate.low, estimate.high


def _estimated(field: str, estimate: Estimate | None) -> dict[str, Any]:
    """Return the field of a value and that of its interval."""
    if estimate is None:
        return {field: None, f"{field}_interval": None}
    return {field: estimate.value, f"{field}_interval": _ends(estimate)}
