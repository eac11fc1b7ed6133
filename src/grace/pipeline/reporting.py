"""Stage `report`: runs' tables become report.json, report.md, report.html and figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from grace import __version__
from grace.config import to_dict
from grace.errors import RunError, UserInputError
from grace.estimators import Estimator
from grace.pipeline.context import Context
from grace.pipeline.replays import read_replay
from grace.pipeline.scoring import TRAINED, TestSet, rated_estimators, test_sets
from grace.pipeline.validating import validated
from grace.report import (
    EstimatorResult,
    Example,
    ReportInput,
    TargetRow,
    build_report,
    merge,
    to_json,
)
from grace.store import read_json

FIGURE_SUFFIXES = (".png", ".svg")


def report(context: Context) -> None:
    """Write the run's report."""
    directory, settings = context.directory, context.settings.report
    build_report(
        report_input(context),
        directory.path,
        bins=settings.bins,
        resamples=settings.bootstrap,
        seed=context.settings.seed,
    )
    score = directory.manifest("score") or {}
    directory.finish(
        "report",
        {"report": to_dict(settings)},
        [directory.path / name for name in score.get("outputs", {})],
        list(_written(directory.path)),
    )


def report_input(context: Context) -> ReportInput:
    """Gather what a finished run has measured."""
    directory, settings = context.directory, context.settings
    config = read_json(directory.config)
    table = read_json(directory.target_table)
    estimators, task = _with_tables(context), settings.data.task
    return ReportInput(
        name=directory.path.name,
        created=config["created"],
        version=__version__,
        hardware=config["hardware"],
        results=[
            _result(context, test, name, estimator)
            for test in test_sets(context)
            for name, estimator in estimators.items()
        ],
        targets=[TargetRow(**row, task=task) for row in table["bins"]],
        target_values={task: [row.target for row in directory.split("train").targets.read()]},
        notes=table["warnings"],
        settings=to_dict(settings),
        examples=list(_examples(context)),
        replays=[replay] if (replay := read_replay(context)) else (),
        validation=list(validated(context)),
    )


def _with_tables(context: Context) -> dict[str, Estimator]:
    """Return the estimators of the report; a run of an earlier version has not rated them all."""
    asked, sets = context.settings.report.estimators, list(test_sets(context))
    return {
        name: estimator
        for name, estimator in rated_estimators(context).items()
        if name in asked
        or all(t.answered(estimator.answers).confidences(name).path.exists() for t in sets)
    }


def read_reports(contexts: Sequence[Context], out: Path) -> dict[str, Any]:
    """Write one report of several finished runs, computed from what each of them has measured.

    Raises:
        RunError: a run has not finished.
        UserInputError: no run is given.
    """
    if not contexts:
        raise UserInputError("no run given; name at least one finished run")
    for context in contexts:
        if context.directory.manifest("report") is None:
            path = context.directory.path
            raise RunError(f"{path} is not finished; finish it first: grace run {path}")
    settings = contexts[0].settings
    report = build_report(
        merge([report_input(context) for context in contexts], out.name),
        out,
        bins=settings.report.bins,
        resamples=settings.report.bootstrap,
        seed=settings.seed,
    )
    content: dict[str, Any] = to_json(report)
    return content


def _result(context: Context, test: TestSet, name: str, estimator: Estimator) -> EstimatorResult:
    settings, split = context.settings, test.answered(estimator.answers)
    rows = split.confidences(name).read()
    cost = read_json(split.cost(name))
    generating = context.directory.seconds_per_answer(split)
    beyond = cost.pop("extra_seconds_per_answer")
    return EstimatorResult(
        task=test.context.settings.data.task,
        train_task=settings.data.task,
        backbone=Path(settings.model.path).name,
        estimator=_called(name, settings.report.name),
        seed=settings.seed,
        confidence=[row.confidence for row in rows],
        correct=[grade.correct for grade in split.grades.read()],
        ids=[row.id for row in rows],
        seconds_per_answer=None if generating is None else generating + beyond,
        **cost,
    )


def _called(name: str, trained: str) -> str:
    """Return what the rows call an estimator: what the run has trained goes by the run's name."""
    plain, plus, how = name.partition("+")
    return {TRAINED: trained, "grace_base": f"{trained}@base"}.get(plain, plain) + plus + how


def _examples(context: Context) -> Iterator[Example]:
    """Yield the tuned model's test answers with their confidences."""
    split = context.directory.split("test").tuned
    questions = {q.id: q.text for q in split.questions.read()}
    for response, grade in zip(split.responses.read(), split.grades.read(), strict=True):
        yield Example(
            questions[response.question_id],
            response.text,
            grade.correct,
            response.confidence,
            context.settings.data.task,
        )


def _written(path: Path) -> Iterator[Path]:
    yield from (path / name for name in ("report.json", "report.md", "report.html"))
    figures = path / "figures"
    if figures.is_dir():
        yield from sorted(f for f in figures.iterdir() if f.suffix in FIGURE_SUFFIXES)
