"""Stage `report`: report.json, report.md, report.html and figures from the tables of runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grace.calibration import log_losses, standard_error
from grace.config import RunSettings, to_dict
from grace.errors import RunError, UserInputError
from grace.estimators import Estimator, rated_model
from grace.pipeline.context import Context, open_run
from grace.pipeline.replays import read_replay
from grace.pipeline.stages.fit import layer_read
from grace.pipeline.stages.score import COMPARED, TRAINED, TestSet, rated_estimators, test_sets
from grace.report import (
    EstimatorResult,
    RatedAnswer,
    Report,
    ReportInput,
    TargetRow,
    Traced,
    Validation,
    merge,
    summarize,
    to_json,
    write_report,
)
from grace.report.inputs import FEWEST_OF_A_PART
from grace.store import Split, read_json, runs_in

Array = NDArray[np.float64]
OURS, *RIVALS = COMPARED
SHARES = np.linspace(0, 1, 21)
"""The shares of an answer after which its confidence is shown."""


def report(context: Context) -> None:
    """Write the run's report."""
    directory, settings = context.directory, context.settings.report
    summary = _summarized(report_input(context), context.settings)
    outputs = write_report(summary, directory.path)
    inputs = [directory.path / name for name in directory.manifest("score")["outputs"]]
    directory.finish("report", {"report": to_dict(settings)}, inputs, outputs)


def report_input(context: Context) -> ReportInput:
    """Gather the results of a finished run."""
    directory, settings = context.directory, context.settings
    config = read_json(directory.config)
    binned = directory.target_table.exists() and settings.method == "paper"
    table = read_json(directory.target_table) if binned else {"bins": [], "warnings": []}
    estimators, task = rated_estimators(context), context.about["task"]
    layer = layer_read(directory)
    reads = [f"the confidence reads the MLP of block {layer}"] if layer else []
    notes = [*table["warnings"], *reads, *_small_sources(context)]
    return ReportInput(
        name=directory.path.resolve().name,
        created=config["created"],
        hardware=config["hardware"],
        results=[
            result
            for test in test_sets(context)
            for name, estimator in estimators.items()
            for result in _results(context, test, name, estimator)
        ],
        targets=[TargetRow(**row, task=task) for row in table["bins"]],
        notes=[f"{_run_name(context)}: {warning}" for warning in notes],
        settings=to_dict(settings),
        examples=list(_examples(context)),
        replays=[replay] if (replay := read_replay(context)) else (),
        validation=list(_validations(context)),
        traces=list(_traces(context)),
    )


def _run_name(context: Context) -> str:
    """Return the name of a run among others: its task, its variant, its seed."""
    settings = context.settings
    variant = [] if settings.report.name == TRAINED else [settings.report.name]
    return ", ".join([context.about["task"], *variant, f"seed {settings.seed}"])


def report_runs(paths: Sequence[Path], out: Path | None = None) -> dict[str, Any]:
    """Return the report of runs and studies side by side, written to `out` if given."""
    if len(paths) == 1 and out is None and (paths[0] / "report.json").exists():
        report: dict[str, Any] = read_json(paths[0] / "report.json")
        return report
    if not paths:
        raise UserInputError("no run given; name at least one finished run")
    runs = {run.resolve(): run for path in paths for run in runs_under(path)}  # each only once
    contexts = [open_run(run) for run in runs.values()]
    for context in contexts:
        check_finished(context)
    name = (out or paths[0]).resolve().name
    summary = _summarized(merge(map(report_input, contexts), name), contexts[0].settings)
    if out is not None:
        write_report(summary, out)
    content: dict[str, Any] = to_json(summary)
    return content


def _small_sources(context: Context) -> Iterator[str]:
    """Yield a note on the sources whose test answers are too few for a table of their own."""
    sources = (question.source for question in context.directory.split("test").questions.read())
    few = {name: n for name, n in Counter(sources).items() if name and n < FEWEST_OF_A_PART}
    if few:
        named = ", ".join(f"{name} {n}" for name, n in sorted(few.items())[:10])
        more = ", ..." * (len(few) > 10)
        yield f"sources of fewer than {FEWEST_OF_A_PART} test answers have no table: {named}{more}"


def _summarized(data: ReportInput, settings: RunSettings) -> Report:
    bins, resamples = settings.report.bins, settings.report.bootstrap
    return summarize(data, bins=bins, resamples=resamples, seed=settings.seed)


def runs_under(path: Path) -> list[Path]:
    """Return the run at a path, or those of a study."""
    if runs := runs_in(path):
        return runs
    raise RunError(f"{path} is not a run, and there is none in it; see `grace list runs`")


def check_finished(context: Context) -> None:
    """Refuse a run without its last stage."""
    if not context.directory.done("report"):
        path = context.directory.path
        raise RunError(f"{path} is not finished; finish it first: grace run {path}")


def _results(
    context: Context, test: TestSet, name: str, estimator: Estimator
) -> Iterator[EstimatorResult]:
    """Yield the result of a test set and, where it mixes several sources, those of each source."""
    whole = _result(context, test, name, estimator)
    yield whole
    split = test.split.by(rated_model(estimator))
    source_of = {question.id: question.source for question in split.questions.read()}
    sources = [source_of[response.question_id] for response in split.responses.read()]
    yield from whole.parts([source or "others" for source in sources])


def _result(context: Context, test: TestSet, name: str, estimator: Estimator) -> EstimatorResult:
    settings, split = context.settings, test.split.by(rated_model(estimator))
    rows = split.confidences(name).read()
    cost = read_json(split.cost(name))
    if not isinstance(cost, dict) or "extra_seconds_per_answer" not in cost:
        raise RunError(f"{split.cost(name)} holds no cost; do the stage again: --redo score")
    beyond = cost.pop("extra_seconds_per_answer")
    cost.pop("left_out_seconds", None)  # of an earlier version
    generating = context.directory.seconds_per_answer(split)
    if generating is None:  # answers of the backbone, rated
        generating = context.directory.seconds_per_answer(test.split)
    return EstimatorResult(
        **test.context.about,
        train_task=context.about["task"],
        estimator=_row_name(name, settings.report.name),
        seed=settings.seed,
        confidence=[row.confidence for row in rows],
        correct=[grade.correct for grade in split.grades.read()],
        ids=[row.id for row in rows],
        groups=_groups(split),
        training=frozenset(q.id for q in context.directory.split("train").questions.read()),
        run=settings.report.name,
        seconds_per_answer=None if generating is None else generating + beyond,
        **cost,
    )


def _groups(split: Split) -> list[str]:
    """Return the group, or else the question, of each response."""
    cluster_of = {question.id: question.cluster for question in split.questions.read()}
    return [cluster_of[response.question_id] for response in split.responses.read()]


def _row_name(name: str, trained: str) -> str:
    """Return an estimator's name in the rows: for `grace` the name of the trained confidence."""
    plain, plus, recalibration = name.partition("+")
    renamed = {TRAINED: trained, "grace_base": f"{trained}@base"}.get(plain, plain)
    return renamed + plus + recalibration


def _examples(context: Context) -> Iterator[RatedAnswer]:
    split = context.directory.split("test").tuned
    questions = {q.id: q for q in split.questions.read()}
    for response, grade in zip(split.responses.read(), split.grades.read(), strict=True):
        question = questions[response.question_id]
        yield RatedAnswer(
            question=question.text,
            answer=response.text,
            correct=grade.correct,
            confidence=response.confidence,
            task=context.about["task"],
            accepted=question.answers,
            choices=question.choices,
        )


def _traces(context: Context) -> Iterator[Traced]:
    """Yield the confidence along the tuned model's test answers, if it was fitted with a trace."""
    split = context.directory.split("test").tuned
    pairs = zip(split.responses.read(), split.grades.read(), strict=True)
    rows = [(row, grade) for row, grade in pairs if row.trace and row.confidence is not None]
    if not rows:
        return
    along = [np.interp(SHARES, np.linspace(0, 1, len(row.trace)), row.trace) for row, _ in rows]
    yield Traced(
        **context.about,
        name=context.settings.report.name,
        c_NS=np.array(along),
        correct_N=np.array([grade.correct for _, grade in rows]),
    )


def _validations(context: Context) -> Iterator[Validation]:
    """Yield GrACE against each rival on validation answers that no fit has seen."""
    split, settings = context.directory.split("validation"), context.settings
    if TRAINED not in settings.report.estimators:
        return
    tables = {name: split.confidences(name).read() for name in COMPARED}
    right_N = np.array([grade.correct for grade in split.grades.read()], dtype=float)
    c = {k: np.array([row.confidence for row in t], dtype=float) for k, t in tables.items()}
    questions = np.array(_groups(split))
    for rival in RIVALS:
        both_N = np.isfinite(c[OURS]) & np.isfinite(c[rival])
        if len(set(questions[both_N])) < 2:
            continue
        for metric, loss in (("log_loss", log_losses), ("brier", _brier)):
            ours_N, theirs_N = (loss(c[k], right_N)[both_N] for k in (OURS, rival))
            yield Validation(
                **context.about,
                seed=settings.seed,
                a=settings.report.name,
                b=rival,
                metric=metric,
                n=int(both_N.sum()),
                a_value=float(ours_N.mean()),
                b_value=float(theirs_N.mean()),
                standard_error=standard_error(ours_N - theirs_N, questions[both_N].tolist()),
            )


def _brier(c_N: Array, right_N: Array) -> Array:
    return (c_N - right_N) ** 2
