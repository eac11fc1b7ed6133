"""The stages in order, each reading and writing the tables of a run directory.

    sample -> grade -> features -> targets -> fit -> train -> answer -> score -> report

Every stage resumes; a finished one is skipped. Changed settings are refused with the difference.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from grace.config import FREE_IN_TRAINING, RunSettings, differences, from_dict, to_dict
from grace.errors import ConfigError, RunError
from grace.pipeline.context import Context, code_in, load_run_settings, read_run_settings
from grace.pipeline.environment import describe_environment
from grace.pipeline.stages import fit, grade, report, sample, score, targets, train
from grace.store import SPLITS, RunDir, disk_watched, read_json, write_json

__all__ = [
    "STAGES",
    "Stage",
    "adopt_settings",
    "code_in",
    "has_begun",
    "load_run_settings",
    "read_run_settings",
    "refuse_changes",
    "run",
    "stages_alike",
    "stages_left",
]


class Stage(NamedTuple):
    """A stage's function, and glob patterns of every file it writes into a run, finished or not."""

    work: Callable[[Context], None]
    writes: tuple[str, ...]


STAGES: dict[str, Stage] = {
    "sample": Stage(
        sample.sample,
        (
            "train/asking.json*",
            "*/questions.jsonl*",
            "*/shots.jsonl*",
            "*/responses.jsonl*",
            "*/pool-*",
        ),
    ),
    "grade": Stage(grade.grade, ("*/grades.jsonl*", "*/pool-*/grades.jsonl*")),
    "features": Stage(targets.features, ("train/features*",)),
    "targets": Stage(targets.targets, ("train/targets*",)),
    "fit": Stage(fit.fit, ("rows", ".rows.*", "train/readout.json")),
    "train": Stage(train.train, ("adapter", ".adapter.*", "checkpoints", "threshold.json")),
    "answer": Stage(
        score.answer_tests,
        ("**/tuned/*.jsonl*", "transfer/*/*.jsonl*", "**/draws-*", "**/tuned/pool-*"),
    ),
    "score": Stage(score.score, ("**/confidences", "scaling.*", "stages/scale.*")),
    "report": Stage(report.report, ("report.*", "figures")),
}

# The first stage that a setting changes; the longest matching prefix counts.
FIRST_STAGE = {
    "seed": "sample",
    "model": "sample",
    "data": "sample",
    "sample": "sample",
    "grade": "grade",
    "target": "targets",
    "train": "train",
    "train.head": "fit",
    "train.trace": "features",
    "report": "report",
    "report.transfer": "answer",
    "report.estimators": "score",
    "estimators": "score",
    "sample.draw_temperature": "answer",
}

# Estimators may come and go at any time: what is rated stays, and only what is new is rated.
GROWING = "report.estimators"


def run(
    path: Path, settings: RunSettings, *, redo: str | None = None, until: str | None = None
) -> dict[str, Any]:
    """Bring a run to its end and return its report.

    Args:
        path: the run directory; made if missing, resumed if there.
        settings: must equal those of an existing run, except where `redo` reaches.
        redo: a stage to do again, with all that follow it.
        until: the last stage to do; without the report, nothing is returned.

    Raises:
        RunError: settings or files of a finished stage changed; another process is at work; the
            disk is full.
        ConfigError: `redo` or `until` is not a stage, or an estimator cannot be fitted here.
    """
    order = list(STAGES)
    last = until or order[-1]
    _check_stage(last)
    directory = RunDir(path)
    if directory.manifest("score") is None and order.index(last) >= order.index("score"):
        score.check_estimators(settings)
    with directory.lock():
        adopt_settings(directory, settings, redo)
        context = Context(directory, settings)
        for name, stage in STAGES.items():
            if directory.manifest(name) is None:
                context.say(f"stage {name}")
                with disk_watched(path):
                    stage.work(context)
            else:
                _refuse_edited(directory, name)
            if name == last:
                break
    if until is not None and directory.manifest("report") is None:
        return {}
    report: dict[str, Any] = read_json(path / "report.json")
    return report


def adopt_settings(directory: RunDir, settings: RunSettings, redo: str | None) -> None:
    """Write config.json, or check it; forget the stages to be done again or with new settings.

    The new settings are written when all that was made with the old ones is gone.
    """
    if redo is not None:
        _check_stage(redo)
    order, again = list(STAGES), redo
    config: Mapping[str, Any] = {}
    if directory.config.exists():
        config = read_json(directory.config)
        again = refuse_changes(directory, settings, redo)
    elif redo != order[0]:
        _refuse_orphans(directory)
    if config and config["settings"] != to_dict(settings) and not has_begun(directory):
        again = redo = order[0]
    if again is not None:
        for stage in reversed(order[order.index(again) :]):
            directory.forget(stage, STAGES[stage].writes)
    if config and directory.manifest("score") is not None:
        before = from_dict(RunSettings, config["settings"], where=str(directory.config))
        if before.report.estimators != settings.report.estimators:
            _refuse_edited(directory, "score")
            directory.forget("report", STAGES["report"].writes)
            directory.forget("score", ())
    value = {"settings": to_dict(settings), "seed": settings.seed}
    if redo is not None or any(config.get(key) != own for key, own in value.items()):
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        created = now if redo else config.get("created", now)
        write_json(directory.config, value | {"created": created} | describe_environment())


def _refuse_edited(directory: RunDir, stage: str) -> None:
    if changed := directory.changed_files(stage):
        raise RunError(
            f"{directory.path}: {', '.join(changed)} changed after stage {stage}; restore it, or "
            f"do the stage again: --redo {stage}"
        )


def _check_stage(name: str) -> None:
    if name not in STAGES:
        raise ConfigError(f"unknown stage {name!r}; known: {', '.join(STAGES)}")


def _refuse_orphans(directory: RunDir) -> None:
    done = [stage for stage in STAGES if directory.manifest(stage) is not None]
    if done:
        raise RunError(
            f"{directory.config} is missing, but stage {done[0]} is done and its settings are not "
            "known; restore the file, start a new run in another directory, or --redo sample"
        )


def stages_left(
    directory: RunDir, settings: RunSettings, *, redo: str | None = None, until: str | None = None
) -> list[str]:
    """Return the stages that `run` would do, in order; nothing is written.

    Raises:
        RunError: as `run` for settings that changed.
        ConfigError: `redo` or `until` is not a stage.
    """
    order = list(STAGES)
    for stage in filter(None, (redo, until)):
        _check_stage(stage)
    again = order.index(redo) if redo else len(order)
    if directory.config.exists():
        refuse_changes(directory, settings, redo)
        before = read_run_settings(directory.path).report.estimators
        if before != settings.report.estimators:
            again = min(again, order.index("score"))
    reach = order[: order.index(until) + 1] if until else order
    return [s for s in reach if order.index(s) >= again or directory.manifest(s) is None]


def refuse_changes(directory: RunDir, new: RunSettings, redo: str | None) -> str | None:
    """Refuse settings that a run was not begun with, unless the stages they change are done again.

    Stages after the first unfinished one may change: nothing of them is done. A run that has not
    sampled anything yet takes any settings.

    Returns:
        The first stage to be done with other settings than before, `redo` if it comes first.

    Raises:
        RunError: with the difference and the two ways on.
    """
    if not has_begun(directory):
        return redo
    training = directory.manifest("train") is None
    free = [GROWING, *(f"train.{name}" for name in FREE_IN_TRAINING if training)]
    order = list(STAGES)
    changes = differences(to_dict(read_run_settings(directory.path)), to_dict(new))
    begun = {key: pair for key, pair in changes.items() if key not in free}
    reach = min(order.index(redo) if redo else len(order), _untouched(directory))
    refused = {key: pair for key, pair in begun.items() if order.index(_first_stage(key)) < reach}
    if refused:
        difference = ", ".join(f"{key}: {old!r} -> {new!r}" for key, (old, new) in refused.items())
        earliest = min(map(_first_stage, refused), key=order.index)
        raise RunError(
            f"{directory.path} was started with other settings ({difference}); start a new run in "
            f"another directory, or do the stages again that depend on them: --redo {earliest}"
        )
    again = {*map(_first_stage, begun), *filter(None, (redo,))}
    return min(again, key=order.index, default=None)


def _untouched(directory: RunDir) -> int:
    """Return the place of the first stage that is not done nor begun, nor any after it."""
    done = [directory.manifest(stage) is not None for stage in STAGES]
    first = done.index(False) if False in done else len(done)
    return len(done) if any(done[first:]) else first + 1


def has_begun(directory: RunDir) -> bool:
    """Return whether a run has anything that was made with its settings but its questions."""
    sampled = any(directory.split(name).responses.path.exists() for name in SPLITS)
    return sampled or any(directory.manifest(stage) is not None for stage in STAGES)


def stages_alike(one: RunSettings, other: RunSettings) -> list[str]:
    """Return the stages, from the first on, that two runs' settings make do the same."""
    order = list(STAGES)
    changed = map(_first_stage, differences(to_dict(one), to_dict(other)))
    return order[: min(map(order.index, changed), default=len(order))]


def _first_stage(key: str) -> str:
    prefix = max((p for p in FIRST_STAGE if key == p or key.startswith(p + ".")), key=len)
    return FIRST_STAGE[prefix]
