"""Stage `report`: one run's tables become report.json, report.md, report.html and figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from grace import __version__
from grace.config import to_dict
from grace.errors import RunError, UserInputError
from grace.estimators import Estimator
from grace.pipeline.context import Context
from grace.pipeline.scoring import rated_split
from grace.plugins import load
from grace.report import build_report, combine, write_report
from grace.report.inputs import EstimatorResult, Example, ReportInput, TargetRow
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
    return ReportInput(
        name=directory.path.name,
        created=config["created"],
        version=__version__,
        hardware=config["hardware"],
        results=[_result(context, name) for name in settings.report.estimators],
        targets=[TargetRow(**row) for row in table["bins"]],
        target_values=[row.target for row in directory.split("train").targets.read()],
        notes=table["warnings"],
        settings=to_dict(settings),
        examples=list(_examples(context)),
    )


def read_reports(paths: Sequence[Path], out: Path | None) -> dict[str, Any]:
    """Return the report of one run, or of several side by side, written to `out` if given.

    Raises:
        RunError: a path has no finished report.
        UserInputError: no path is given.
    """
    if not paths:
        raise UserInputError("no run given; name at least one finished run")
    missing = [path for path in paths if not (path / "report.json").exists()]
    if missing:
        raise RunError(f"{missing[0]} has no report.json; finish it first: grace run {missing[0]}")
    reports = [read_json(path / "report.json") for path in paths]
    if len(reports) == 1 and out is None:
        only: dict[str, Any] = reports[0]
        return only
    combined = combine(reports, (out or paths[0]).name)
    if out is not None:
        write_report(combined, out)
    return combined


def _result(context: Context, name: str) -> EstimatorResult:
    directory, settings = context.directory, context.settings
    estimator: Estimator = load("grace.estimators", name, "ESTIMATOR")
    split = rated_split(context, estimator)
    rows = split.confidences(estimator.name).read()
    stage = "score" if estimator.answers == "tuned" else "sample"
    generating = directory.seconds_per_answer(stage, "tuned/" if stage == "score" else "test/")
    cost = (directory.manifest("score") or {})["costs"][name]
    return EstimatorResult(
        task=settings.data.task,
        train_task=settings.data.task,
        backbone=Path(settings.model.path).name,
        estimator=estimator.name,
        seed=settings.seed,
        confidence=[row.confidence for row in rows],
        correct=[grade.correct for grade in split.grades.read()],
        ids=[row.id for row in rows],
        seconds_per_answer=(
            None if generating is None else generating + cost["extra_seconds_per_answer"]
        ),
        extra_forward_tokens_per_answer=cost["extra_forward_tokens_per_answer"],
    )


def _examples(context: Context) -> Iterator[Example]:
    """Yield the tuned model's test answers with their confidences."""
    split = context.directory.tuned()
    questions = {q.id: q.text for q in context.directory.split("test").questions.read()}
    for response, grade in zip(split.responses.read(), split.grades.read(), strict=True):
        yield Example(
            questions[response.question_id], response.text, grade.correct, response.confidence
        )


def _written(path: Path) -> Iterator[Path]:
    yield from (path / name for name in ("report.json", "report.md", "report.html"))
    figures = path / "figures"
    if figures.is_dir():
        yield from sorted(f for f in figures.iterdir() if f.suffix in FIGURE_SUFFIXES)
