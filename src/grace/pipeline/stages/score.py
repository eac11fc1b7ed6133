"""Stage `score`: the tuned model answers the test questions, and every estimator rates answers."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

from grace import plugins
from grace.config import RunSettings, from_dict
from grace.errors import DataError, ModelError, RunError
from grace.estimators import (
    Answers,
    Estimator,
    Fitted,
    Samples,
    Splits,
    Values,
    asked_by,
    check_estimator,
    rated_model,
)
from grace.estimators.recalibrated import load_estimator
from grace.pipeline.context import Context
from grace.pipeline.stages.answers import (
    answer,
    answer_tuned,
    draw_further,
    draw_questions,
    draw_shots,
)
from grace.pipeline.stages.cost import Meter, MeteredEngine, fit_cost, stored_training, watched
from grace.pipeline.stages.fit import stored_layers
from grace.probe.rows import assign_folds
from grace.progress import progress
from grace.records import Confidence
from grace.store import Split, write_json

TRAINED = "grace"
COMPARED = ("grace_base", "platt", "evidence", "probe")
"""Estimators that also rate validation answers, where the report compares them with `grace`."""
PROBES = ("probe", "probe_tokens")
FITTED_THERE = ("platt",)
"""Those of them that are fitted on validation answers; each is rated by a fit without it."""
FOLDS = 10


class TestSet(NamedTuple):
    """Test questions of one task, and the context of their prompts."""

    context: Context
    split: Split


class GivenSplits(NamedTuple):
    """The splits that an estimator may be fitted on, given as they are."""

    train: Samples
    validation: Samples


class KnownSplits:
    """The splits that an estimator may be fitted on, read (and sampled if missing) on first use."""

    def __init__(self, context: Context, answers: Answers) -> None:
        self._context = context
        self._answers: Answers = answers

    @functools.cached_property
    def train(self) -> Samples:
        """The backbone's training responses."""
        return samples_of(self._context, "base", self._context.directory.split("train"))

    @functools.cached_property
    def validation(self) -> Samples:
        """The validation responses of the model whose answers are rated."""
        split = self._context.directory.split("validation")
        if self._answers == "tuned":
            answer_tuned(self._context, split)
        return samples_of(self._context, self._answers, split.by(self._answers))


def answer_tests(context: Context) -> None:
    """Let the tuned model answer every test set, and grade its answers."""
    inputs = sorted(path for path in context.directory.adapter.iterdir() if path.is_file())
    outputs = []
    for place, test in enumerate(test_sets(context)):
        if place:  # stage `sample` has drawn the questions of the run's own test set
            draw_shots(test.context)
            draw_questions(test.context, test.split, "test")
            outputs.append(test.split.questions.path)
            outputs += [test.context.shots.path] if context.settings.data.shots else []
        answer_tuned(test.context, test.split)
        outputs += [test.split.tuned.responses.path, test.split.tuned.grades.path]
    tree = {"transfer": list(context.settings.report.transfer)}
    context.directory.finish("answer", tree, inputs, outputs)


def score(context: Context) -> None:
    """Write one confidence table per estimator and test set."""
    directory, settings = context.directory, context.settings
    estimators, sets = rated_estimators(context), list(test_sets(context))
    models = sorted({rated_model(estimator) for estimator in estimators.values()})
    splits = [test.split.by(answers) for test in sets for answers in models]
    outputs = []
    if "base" in models:
        for test in sets[1:]:  # stage `sample` has answered the run's own test set
            answer(test.context, "base", test.split)
            outputs += [test.split.responses.path, test.split.grades.path]
    validation = TestSet(context, directory.split("validation"))
    compared = COMPARED if TRAINED in estimators else ()
    every = {name: fitted_to(context, name) for name in compared} | estimators
    with progress("score estimators", len(every), unit="estimators") as advance:
        for name, estimator in every.items():
            rated = [*sets] if name in estimators else []
            rated += [validation] if name in compared else []
            try:
                with own_estimator(name):
                    outputs += _rate_all(context, name, estimator, rated)
            except ModelError as error:  # a prompt is too long for the model, for example
                told = f"estimator {name}: {error}, or leave {name} out of report.estimators"
                raise type(error)(told) from error
            advance(1, name)
    inputs = [path for split in splits for path in (split.responses.path, split.grades.path)]
    inputs += [directory.split(name).grades.path for name in ("train", "validation")]
    names = list(settings.report.estimators)
    directory.finish(
        "score", {"estimators": names}, [p for p in inputs if p not in outputs], outputs
    )


def rated_estimators(context: Context) -> dict[str, Estimator]:
    """Return the estimators of a report: those set, and the parts of our c fitted alone."""
    settings = context.settings
    names = list(settings.report.estimators)
    if TRAINED in names:
        names += ["evidence", "probe", "probe_tokens"] if settings.method == "grace" else []
        names += [] if context.directory.frozen else ["grace_base"]
    return {name: fitted_to(context, name) for name in names}


def fitted_to(context: Context, name: str) -> Estimator:
    """Return an estimator with the settings of a run; probes choose among the layers of `grace`."""
    settings, plain = context.settings, name.partition("+")[0]
    if plain in PROBES:
        layers = stored_layers(context.directory.split("train").features)
        options = {"layers": layers, **settings.estimators.get(plain, {})}
        settings = dataclasses.replace(settings, estimators={**settings.estimators, plain: options})
    return estimator_of(settings, name)


def check_estimators(settings: RunSettings) -> None:
    """Refuse estimators that this machine cannot fit, before hours are spent on a run."""
    for name in settings.report.estimators:
        check_estimator(estimator_of(settings, name))
    for name, options in settings.estimators.items():
        if ":" not in name:
            kind = plugins.load("grace.estimators", name)
            from_dict(kind, options, where=f"estimators.{name}")


def own_estimator(name: str) -> AbstractContextManager[None]:
    """Turn any exception of an estimator of the user's own into a one-line `ConfigError`."""
    return plugins.own_code(name, f"estimator {name} failed", "correct it, or leave it out")


def estimator_of(settings: RunSettings, name: str) -> Estimator:
    """Return an estimator with the run's settings for it."""
    return load_estimator(name, settings.estimators.get(name.partition("+")[0]))


def test_sets(context: Context) -> Iterator[TestSet]:
    """Yield the run's own test set, then those of the tasks to transfer to."""
    yield TestSet(context, context.directory.split("test"))
    for task in context.settings.report.transfer:
        yield TestSet(context.elsewhere(task), context.directory.split(f"transfer/{task}"))


def samples_of(context: Context, answers: Answers, split: Split) -> Samples:
    """Return a split's responses, with a function that draws further samples from their model."""
    return context.samples(split, functools.partial(draw_further, context, answers, split))


def _rate_all(
    context: Context, name: str, estimator: Estimator, sets: Sequence[TestSet]
) -> list[Path]:
    """Rate every test set with one fit; stored confidences are kept."""
    rated = [TestSet(test.context, test.split.by(rated_model(estimator))) for test in sets]
    missing = [test for test in rated if not _is_rated(test.split, name)]
    if missing:
        model = asked_by(estimator)
        stored = stored_training(context) if model == "base" else None
        engine = MeteredEngine(lambda: context.engine(model), Meter(), stored)
        start = time.perf_counter()
        fit_on = KnownSplits(context, rated_model(estimator))
        fitted = estimator.fit(fit_on, engine, context.settings.seed)
        seconds = time.perf_counter() - start
        fit = fit_cost(context, estimator, fitted.trained_parameters, seconds)
        engine.stored = None
        for test in missing:
            samples = samples_of(test.context, rated_model(estimator), test.split)
            own = test.split.path == context.directory.split("validation").path
            unseen = (
                own and name in FITTED_THERE and len({q.cluster for q in samples.questions}) > 1
            )
            refit = functools.partial(estimator.fit, engine=engine, seed=context.settings.seed)
            rated_by = cross_fitted(refit, fit_on) if unseen else fitted
            _rate(test, name, samples, rated_by, engine, fit)
    return [test.split.confidences(name).path for test in rated]


def cross_fitted(fit: Callable[[Splits], Fitted], splits: Splits) -> Fitted:
    """Return a function that rates validation answers by fits that have not seen their question."""

    def rate(samples: Samples) -> Values:
        groups = [question.cluster for question in samples.questions]
        fold_N = assign_folds(groups, FOLDS)
        values: Values = [None] * len(groups)
        for fold in set(fold_N.tolist()):
            held, rest = ((fold_N == fold).nonzero()[0], (fold_N != fold).nonzero()[0])
            try:
                fitted = fit(GivenSplits(splits.train, samples.part(rest)))
            except DataError:  # the others say too little
                continue
            for row, value in zip(held, fitted.rate(samples.part(held)), strict=True):
                values[row] = value
        return values

    return Fitted(rate)


def _is_rated(split: Split, name: str) -> bool:
    """Return whether an earlier, unfinished attempt has rated all responses of a split."""
    ids = split.confidences(name).ids()
    return ids is not None and split.cost(name).exists() and ids == split.responses.ids()


def _rate(
    test: TestSet,
    name: str,
    samples: Samples,
    fitted: Fitted,
    engine: MeteredEngine,
    fit: Mapping[str, float | None],
) -> None:
    """Rate the responses of a test set, and write their confidences and the cost."""
    directory, split, count = test.context.directory, test.split, len(samples.responses)
    meter = engine.meter = Meter()
    temperature = test.context.settings.sample.draw_temperature
    counted = watched(
        samples, meter, lambda n: directory.seconds_per_answer(split.pool(n, temperature))
    )
    start = time.perf_counter()
    values = checked(name, fitted.rate(counted), count)
    seconds = time.perf_counter() - start + meter.seconds
    cost = {
        "extra_seconds_per_answer": seconds / count,
        "extra_forward_tokens_per_answer": meter.forward_tokens / count,
        "extra_requests_per_answer": meter.requests / count,
        "access": meter.access,
        **fit,
    }
    write_json(split.cost(name), cost)
    rows = zip(samples.responses, values, strict=True)
    split.confidences(name).write([Confidence(response.id, value) for response, value in rows])


def checked(name: str, given: Iterable[Any], count: int) -> Values:
    """Return the values of an estimator, one probability, or None, per response."""
    values = list(given)
    if bad := [value for value in values if not isinstance(value, Real | None)]:
        raise RunError(f"estimator {name} gave {bad[0]!r}; a confidence is a number, or None")
    if len(values) != count:
        raise RunError(
            f"estimator {name} gave {len(values)} values for {count} responses; it must give one "
            "per response, or None"
        )
    if bad := [value for value in values if value is not None and not 0 <= value <= 1]:
        raise RunError(f"estimator {name} gave {bad[0]}; a confidence lies in [0, 1]")
    return [None if value is None else float(value) for value in values]
