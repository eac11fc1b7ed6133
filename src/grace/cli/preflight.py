"""What can be known to be wrong before a run spends an hour: its place, and the names in it."""

from __future__ import annotations

from pathlib import Path

from grace.config import RunSettings, is_missing
from grace.errors import LOCAL, ConfigError, MissingError


def check_packages(what: str) -> None:
    """Refuse to start in the light install what would fail an hour later.

    Raises:
        MissingError: names the first package that is not there.
    """
    import importlib.util

    for package in LOCAL:
        if importlib.util.find_spec(package) is None:
            raise MissingError(what, package)


def check_place(path: Path, *, new: bool = True) -> None:
    """Refuse to start or resume a run where something else is.

    Args:
        path: the run directory.
        new: the command names a model, so that it could start a run here.

    Raises:
        ConfigError: a file, another program's directory, or a folder of several runs.
    """
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


def check_report_place(out: Path | None) -> None:
    """Refuse to write a report over the one that belongs to a run.

    Raises:
        ConfigError: the place is a file, a run or a study.
    """
    from grace.store import is_run, is_study

    if out is None:
        return
    if out.is_file():
        raise ConfigError(f"{out} is a file; name a directory for the report")
    if is_run(out) or is_study(out):
        raise ConfigError(f"{out} is a run with a report of its own; name another directory")


def check_names(settings: RunSettings) -> None:
    """Refuse a model, a task, a grader or an estimator that is not there.

    Raises:
        ConfigError: names it, the closest name and all that there are; or a file of questions
            that the task does not read.
    """
    from grace.grading import grader_of
    from grace.pipeline.stages.score import load_estimators
    from grace.tasks import load_task

    model, file = settings.model.path, settings.data.file
    if is_missing(model):
        raise ConfigError(f"{model} does not exist; give a model directory or Hub id")
    task = load_task(settings.data.task)
    if file and settings.data.task != "jsonl" and ":" not in settings.data.task:
        raise ConfigError(
            f"task {task.name} has questions of its own and would not read {file}; leave out one "
            "of the two"
        )
    grader_of(settings.grade, task.grader)
    for other in settings.report.transfer:
        load_task(other)
    load_estimators(settings)


def check_questions(path: Path, settings: RunSettings) -> None:
    """Read a new run's own questions before anything is written, so that a mistake leaves nothing.

    Raises:
        DataError: they cannot be used; the message names the line.
    """
    from grace.store import RunDir
    from grace.tasks import load_task
    from grace.tasks.prompts import draw_training

    if settings.data.file and not RunDir(path).config.exists():
        draw_training(load_task(settings.data.task), settings.data, settings.seed)
