"""`grace.run` and `grace run`: a user's arguments are checked before a run starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from grace.config import RunSettings, assignment, is_missing
from grace.errors import LOCAL, ConfigError, MissingError
from grace.pipeline.study import Study, resolve_study, run_study
from grace.report import Report, checked_report

NO_SETTINGS: Mapping[str, Any] = MappingProxyType({})
KEYS = {
    "model": "model.path",
    "device": "model.device",
    "task": "data.task",
    "data": "data.dir",
    "file": "data.file",
    "question_field": "data.question_field",
    "answer_field": "data.answer_field",
    "seed": "seed",
}
"""The settings that arguments of `grace run` stand for."""


def run(
    directory: str | Path,
    *,
    model: str | Path | None = None,
    recipe: str | Path | None = None,
    task: str | None = None,
    data: str | Path | None = None,
    file: str | Path | None = None,
    seed: int | None = None,
    seeds: int | None = None,
    settings: Mapping[str, Any] = NO_SETTINGS,
    redo: str | None = None,
    until: str | None = None,
    jobs: int = 1,
) -> Report | None:
    """Sample and grade answers, fit a confidence to them, and report how good it is. Resumes.

    Args:
        directory: the run; `grace.load` loads it afterwards.
        model: the backbone: a directory, a GGUF file or a Hub id.
        recipe: a TOML file of settings.
        task: which questions: a task of `grace list tasks`; of a recipe with several tasks, the
            only one to run.
        data: a folder with TASK/SPLIT.jsonl, instead of the Hub.
        file: your own questions: a file, a folder of files, or hf:OWNER/NAME.
        seed: the seed of everything random; None: 0.
        seeds: this many seeds, each in a directory of its own, and one common report.
        settings: further settings by name, such as `{"data.train": 500}`; `grace list settings`.
        redo: a stage to do again, with the later ones.
        until: the last stage to do.
        jobs: tasks and seeds at a time, each in a process of its own.

    Returns:
        The report; None if `until` stops before it.

    Raises:
        GraceError: an argument cannot be used, or does not fit an existing run.
    """
    path = Path(directory)
    overrides = [_override(key, value) for key, value in settings.items()]
    named = {"model": model, "task": task, "data": data, "file": file, "seed": seed}
    start = None if recipe is None else Path(recipe)
    study = resolve(path, start, named, overrides, seeds=seeds, redo=redo)
    report = run_study(path, study, redo=redo, until=until, jobs=jobs)
    return checked_report(report, path) if report else None


def _override(key: str, value: Any) -> str:
    """Return KEY=VALUE."""
    if value is None:
        raise ConfigError(f"{key} is None; leave it out for its default")
    return assignment(key, value)


def resolve(
    path: Path,
    recipe: Path | None,
    named: Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    seeds: int | None = None,
    redo: str | None = None,
) -> Study:
    """Return the runs that arguments (`KEYS`) and KEY=VALUE overrides ask for; writes nothing."""
    check_packages("grace run")
    if seeds is not None and seeds < 1:
        raise ConfigError(f"seeds is {seeds}; use 1 or more, or leave it out")
    given = {key: value for key, value in named.items() if value is not None and value != ""}
    check_place(path, new=recipe is not None or "model" in given)
    if "file" in given:
        given.setdefault("task", "jsonl")
    first = [_override(KEYS[name], given[name]) for name in KEYS if name in given]
    study = resolve_study(path, recipe, [*first, *overrides], seeds=seeds)
    for folder, settings in study.runs().items():
        check_names(settings)
        check_samples(settings)
        check_questions(path / folder, settings, again=redo == "sample")
    return study


def check_packages(what: str) -> None:
    """Refuse to start work that the light install cannot do."""
    import importlib.util

    for package in LOCAL:
        if importlib.util.find_spec(package) is None:
            raise MissingError(what, package)


def check_place(path: Path, *, new: bool = True) -> None:
    """Refuse a path that is in use otherwise; `new`: the command could start a run here."""
    from grace.store import is_run, is_study, runs_in

    ours = is_run(path) or is_study(path)
    if path.is_file():
        raise ConfigError(f"{path} is a file; name a directory for the run, e.g. runs/first")
    if (path / "config.json").exists() and not ours:
        raise ConfigError(
            f"{path} holds a config.json that is not a run's; name another directory, "
            "e.g. runs/first"
        )
    if not new and not ours and (runs := runs_in(path)):
        raise ConfigError(
            f"{path} holds several runs; resume one of them (grace run {runs[0]}), or repeat the "
            "command that started them"
        )


def check_names(settings: RunSettings) -> None:
    """Refuse an unknown model, engine, task, grader or estimator, and rows of one name."""
    from grace import plugins
    from grace.engines.base import engine_class
    from grace.grading import grader_of
    from grace.pipeline.stages.score import estimator_of
    from grace.tasks import load_task

    model, file = settings.model.path, settings.data.file
    if is_missing(model):
        raise ConfigError(f"{model} does not exist; give a model directory or Hub id")
    engine_class(settings.model.engine)
    task = load_task(settings.data.task)
    if file and settings.data.task != "jsonl" and ":" not in settings.data.task:
        raise ConfigError(
            f"task {task.name} has questions of its own and does not read {file}; leave out --task "
            "or --file"
        )
    grader_of(settings.grade, task.grader)
    report, rated = settings.report, {settings.data.task}
    for other in report.transfer:
        load_task(other)
        if other in rated:
            raise ConfigError(f"report.transfer names {other}, which is rated already; remove it")
        rated.add(other)
    for name in report.estimators:
        estimator_of(settings, name)
    taken = {*report.estimators, *plugins.find("grace.strategies"), "base"}
    taken |= {"evidence", "probe", "probe_tokens"}  # in every report of a linear head
    if not report.name or report.name in taken - {"grace"} or set(report.name) & set("@+,/"):
        raise ConfigError(
            f"report.name is {report.name!r}; choose a name that no other row of the report and no "
            "strategy has, without @ + , /"
        )


def check_samples(settings: RunSettings) -> None:
    """Refuse several greedy answers to a question, which would all be the same."""
    sample = settings.sample
    for split, count, temperature in (
        ("train", sample.train_samples, sample.train_temperature),
        ("test", sample.test_samples, sample.test_temperature),
    ):
        if count > 1 and temperature == 0:
            raise ConfigError(
                f"at temperature 0 all {count} answers to a question are equal; set "
                f"sample.{split}_temperature=0.8, or leave out sample.{split}_samples"
            )


def check_questions(path: Path, settings: RunSettings, *, again: bool = False) -> None:
    """Read a run's questions first, so that a mistake in them leaves no run behind."""
    from grace.store import RunDir
    from grace.tasks import load_task
    from grace.tasks.prompts import draw_training

    data = settings.data
    if (RunDir(path).config.exists() and not again) or not (data.file or data.dir):
        return
    if data.file and data.dir and data.task == "jsonl":
        raise ConfigError(
            f"the questions are in {data.file} or in {data.dir}, not in both; leave out --file or "
            "--data (data.file, data.dir)"
        )
    draw_training(load_task(data.task), data, settings.seed)
