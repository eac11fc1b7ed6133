"""The stages in order, each reading and writing the tables of a run directory.

    sample -> grade -> features -> targets -> train -> score -> report

Every stage resumes; a finished one is skipped. Changed settings are refused with the difference.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from grace.config import RunSettings, from_dict, load_settings, override_settings, to_dict
from grace.errors import ConfigError, RunError
from grace.pipeline import grading, learning, reporting, sampling, scoring
from grace.pipeline.context import Context
from grace.pipeline.environment import describe_environment
from grace.store import RunDir, read_json, write_json

Stage = Callable[[Context], None]

STAGES: dict[str, Stage] = {
    "sample": sampling.sample,
    "grade": grading.grade,
    "features": learning.features,
    "targets": learning.targets,
    "train": learning.train,
    "score": scoring.score,
    "report": reporting.report,
}

# The first stage that a setting changes; the longest matching prefix counts.
FIRST_STAGE = {
    "seed": "sample",
    "model": "sample",
    "data": "sample",
    "sample": "sample",
    "grade": "grade",
    "target": "targets",
    "target.features": "features",
    "train": "train",
    "report": "report",
    "report.estimators": "score",
}


def run(path: Path, settings: RunSettings, *, redo: str | None = None) -> dict[str, Any]:
    """Bring a run to its end and return its report.

    Args:
        path: the run directory; made if missing, resumed if there.
        settings: must equal those of an existing run, except where `redo` reaches.
        redo: a stage to do again, with all that follow it.

    Raises:
        RunError: settings or files of a finished stage changed; another process is at work.
        ConfigError: `redo` is not a stage.
    """
    if redo is not None and redo not in STAGES:
        raise ConfigError(f"unknown stage {redo!r}; known: {', '.join(STAGES)}")
    directory = RunDir(path)
    with directory.lock():
        _adopt_settings(directory, settings, redo)
        context = Context(directory, settings)
        for name, stage in STAGES.items():
            if directory.manifest(name) is None:
                context.say(f"stage {name}")
                stage(context)
            elif changed := directory.changed_files(name):
                raise RunError(
                    f"{path}: {', '.join(changed)} changed after stage {name}; restore it, or do "
                    f"the stage again: --redo {name}"
                )
    report: dict[str, Any] = read_json(path / "report.json")
    return report


def run_seeds(
    path: Path, settings: RunSettings, *, seeds: int = 1, redo: str | None = None
) -> dict[str, Any]:
    """Run one seed in `path`, or several in `path/seed-N` with one common report in `path`."""
    if seeds == 1:
        return run(path, settings, redo=redo)
    folders = []
    for seed in range(settings.seed, settings.seed + seeds):
        folders.append(path / f"seed-{seed}")
        run(folders[-1], dataclasses.replace(settings, seed=seed), redo=redo)
    return reporting.read_reports(folders, path)


def resolve_settings(path: Path, recipe: Path | None, overrides: Sequence[str]) -> RunSettings:
    """Return the settings for a run: a new run's from its recipe, an old run's as it has them.

    Overrides change either; whether an old run accepts them is for `run` to say.

    Raises:
        ConfigError: an unknown or impossible setting, or a new run without a model or a task.
    """
    if recipe is None and RunDir(path).config.exists():
        stored = to_dict(load_run_settings(path))
        settings = override_settings(stored, overrides)
    else:
        settings = load_settings(recipe, overrides)
    for key, value, remedy in (
        ("model.path", settings.model.path, "--model DIR or a Hub id"),
        ("data.task", settings.data.task, "--task NAME (see `grace list tasks`)"),
    ):
        if not value:
            raise ConfigError(f"{key} is not set; give {remedy}, or a recipe that sets it")
    return settings


def load_run_settings(path: Path) -> RunSettings:
    """Return the settings that a run was started with.

    Raises:
        RunError: there is no run at this path.
    """
    config = RunDir(path).config
    if not config.exists():
        raise RunError(f"{path} is not a run (no config.json); see `grace list runs`")
    return from_dict(RunSettings, read_json(config)["settings"], where=str(config))


def _adopt_settings(directory: RunDir, settings: RunSettings, redo: str | None) -> None:
    """Write config.json, or check it; forget the stages that are to be done again."""
    if directory.config.exists():
        known = load_run_settings(directory.path)
        _refuse_changes(directory.path, known, settings, redo)
    if redo is not None:
        order = list(STAGES)
        for stage in reversed(order[order.index(redo) :]):
            directory.forget(stage)
    if redo is not None or not directory.config.exists():
        created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        value = {"settings": to_dict(settings), "seed": settings.seed, "created": created}
        write_json(directory.config, value | describe_environment())


def _refuse_changes(path: Path, old: RunSettings, new: RunSettings, redo: str | None) -> None:
    before, after = _flatten(to_dict(old)), _flatten(to_dict(new))
    order = list(STAGES)
    reach = order.index(redo) if redo else len(order)
    changes = {key: _first_stage(key) for key in before if before[key] != after[key]}
    refused = [key for key, stage in changes.items() if order.index(stage) < reach]
    if refused:
        difference = ", ".join(f"{key}: {before[key]!r} -> {after[key]!r}" for key in refused)
        earliest = min((changes[key] for key in refused), key=order.index)
        raise RunError(
            f"{path} was started with other settings ({difference}); start a new run in another "
            f"directory, or do the stages again that depend on them: --redo {earliest}"
        )


def _first_stage(key: str) -> str:
    prefix = max((p for p in FIRST_STAGE if key == p or key.startswith(p + ".")), key=len)
    return FIRST_STAGE[prefix]


def _flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
