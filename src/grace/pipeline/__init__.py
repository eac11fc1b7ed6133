"""A run: its stages in order, each of which reads and writes files of the run directory.

    sample -> grade -> features -> fit -> answer -> score -> report

Every stage resumes, and a finished one is skipped. Changed settings are refused, with the
difference and what to do.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from grace.config import FREE_IN_TRAINING, RunSettings, differences, to_dict
from grace.errors import ConfigError, RunError
from grace.pipeline.context import Context
from grace.pipeline.context import code_in as code_in
from grace.pipeline.context import load_run_settings as load_run_settings
from grace.pipeline.context import read_run_settings as read_run_settings
from grace.pipeline.stages import answers, fit, paper, report, score
from grace.progress import say
from grace.store import SPLITS, RunDir, disk_watched, read_json, write_json


class Stage(NamedTuple):
    """A stage's function, and glob patterns of all that it writes into a run, temporary or not."""

    work: Callable[[Context], None]
    writes: tuple[str, ...]


METHODS = {"grace": fit.fit_run, "paper": paper.fit_run}


def _fit(context: Context) -> None:
    """Fit the confidence with the method of the run."""
    METHODS[context.settings.method](context)


STAGES: dict[str, Stage] = {
    "sample": Stage(
        answers.sample,
        (
            "train/asking.json*",
            "*/questions.jsonl*",
            "*/shots.jsonl*",
            "*/responses.jsonl*",
            "*/pool-*",
        ),
    ),
    "grade": Stage(answers.grade, ("*/grades.jsonl*", "*/pool-*/grades.jsonl*")),
    "features": Stage(fit.features, ("train/features*",)),
    "fit": Stage(
        _fit,
        (
            *("adapter", ".adapter.*", "checkpoints", "threshold.json", "vote.json"),
            *("train/readout.json", "train/targets*", "rows", ".rows.*"),
        ),
    ),
    "answer": Stage(
        score.answer_tests,
        ("**/tuned/*.jsonl*", "transfer/*/*.jsonl*", "transfer/*/pool-*", "**/tuned/pool-*"),
    ),
    "score": Stage(score.score, ("**/confidences", "scaling.*", "stages/scale.*")),
    "report": Stage(report.report, ("report.*", "figures")),
}

ORDER = list(STAGES)

# The first stage that a setting changes; the longest matching prefix counts.
FIRST_STAGE = {
    "seed": "sample",
    "model": "sample",
    "data": "sample",
    "sample": "sample",
    "grade": "grade",
    "method": "features",
    "grace": "features",
    "paper": "fit",
    "report": "report",
    "report.transfer": "answer",
    "report.estimators": "score",
    "estimators": "score",
    "sample.draw_temperature": "answer",
}

# Estimators may be added and removed at any time: stored confidences stay, only new ones are made.
ESTIMATORS = "report.estimators"


def run(
    path: Path, settings: RunSettings, *, redo: str | None = None, until: str | None = None
) -> dict[str, Any]:
    """Bring a run to its end and return its report."""
    directory = RunDir(path)
    check_start(directory, settings, redo=redo, until=until)
    with directory.lock():
        adopt_settings(directory, settings, redo)
        _note_newer_questions(directory, settings)
        context = Context(directory, settings)
        for name in ORDER[: ORDER.index(until or ORDER[-1]) + 1]:
            if not directory.done(name):
                say(f"stage {name}")
                with disk_watched(path):
                    STAGES[name].work(context)
            else:
                refuse_edited(directory, name)
    if not directory.done("report"):
        return {}
    content: dict[str, Any] = read_json(path / "report.json")
    return content


def check_start(
    directory: RunDir, settings: RunSettings, *, redo: str | None, until: str | None
) -> None:
    """Refuse what `run` would refuse, before anything is written or removed."""
    left = stages_left(directory, settings, redo=redo, until=until)
    if redo and "sample" in left:
        answers.check_model(settings)
    elif "grade" in left:
        answers.check_grader(Context(directory, settings))
    if "features" in left:
        fit.check_layer(settings)
    if "score" in left:
        score.check_estimators(settings)


def adopt_settings(directory: RunDir, settings: RunSettings, redo: str | None) -> None:
    """Write config.json, last, or check it; remove what stages to be redone have written."""
    stored: Mapping[str, Any] = {}
    if directory.config.exists():
        stored = read_json(directory.config)
        again = refuse_changes(directory, settings, redo)
    else:
        again = redo
        if redo != ORDER[0]:
            _refuse_orphans(directory)
    if again is not None:
        for stage in reversed(ORDER[ORDER.index(again) :]):
            directory.forget(stage, STAGES[stage].writes)
    if directory.done("score") and _rates_others(directory, settings):
        refuse_edited(directory, "score")
        directory.forget("report", STAGES["report"].writes)
        directory.forget("score", ())
    config = {"settings": to_dict(settings), "seed": settings.seed}
    if redo is not None or any(stored.get(key) != value for key, value in config.items()):
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        anew = redo is not None or again == ORDER[0]
        created = now if anew else stored.get("created", now)
        write_json(directory.config, config | {"created": created} | describe_environment())


def _note_newer_questions(directory: RunDir, settings: RunSettings) -> None:
    """Say that a run keeps the questions that it has read, if the user's file was edited since."""
    file, drawn = Path(settings.data.file), directory.split("train").questions.path
    if file.is_file() and drawn.exists() and file.stat().st_mtime > drawn.stat().st_mtime:
        say(
            f"{file} is newer than the questions of {directory.path}, which stay as they were "
            "read; to read it again: --redo sample"
        )


def _rates_others(directory: RunDir, settings: RunSettings) -> bool:
    """Return whether a run's stored settings name other estimators than these."""
    stored = read_run_settings(directory.path)
    return stored.report.estimators != settings.report.estimators


def refuse_edited(directory: RunDir, stage: str) -> None:
    """Refuse a run in which files that a finished stage has read or written have changed."""
    if changed := directory.changed_files(stage):
        raise RunError(
            f"{directory.path}: {', '.join(changed)} changed after stage {stage}; restore it, or "
            f"do the stage again: --redo {stage}"
        )


def _refuse_orphans(directory: RunDir) -> None:
    done = [stage for stage in STAGES if directory.done(stage)]
    if done:
        raise RunError(
            f"{directory.config} is missing, but stage {done[0]} is done and its settings are not "
            "known; restore the file, start a new run in another directory, or --redo sample"
        )


def stages_left(
    directory: RunDir, settings: RunSettings, *, redo: str | None = None, until: str | None = None
) -> list[str]:
    """Return the stages that `run` would do, in order; nothing is written."""
    for stage in filter(None, (redo, until)):
        if stage not in STAGES:
            raise ConfigError(f"unknown stage {stage!r}; known: {', '.join(STAGES)}")
    again = ORDER.index(redo) if redo else len(ORDER)
    if redo and until and again > ORDER.index(until):
        raise ConfigError(f"--redo {redo} comes after --until {until}; leave one of them out")
    if directory.config.exists():
        refuse_changes(directory, settings, redo)
        if _rates_others(directory, settings):
            again = min(again, ORDER.index("score"))
    reach = ORDER[: ORDER.index(until) + 1] if until else ORDER
    return [s for s in reach if ORDER.index(s) >= again or not directory.done(s)]


def refuse_changes(directory: RunDir, new: RunSettings, redo: str | None) -> str | None:
    """Refuse changed settings, except of stages that are redone or not begun."""
    training = not directory.done("fit")
    free = [ESTIMATORS, *(f"paper.{name}" for name in FREE_IN_TRAINING if training)]
    stored = read_run_settings(directory.path)
    differing = differences(to_dict(stored), to_dict(new))
    if not has_begun(directory):
        return ORDER[0] if differing else redo
    first = _first_stages(stored, new)
    changes = {key: pair for key, pair in differing.items() if key in first and key not in free}
    reach = min(ORDER.index(redo) if redo else len(ORDER), _untouched(directory))
    refused = {key: pair for key, pair in changes.items() if ORDER.index(first[key]) < reach}
    if refused:
        difference = ", ".join(f"{key}: {old!r} -> {new!r}" for key, (old, new) in refused.items())
        earliest = min((first[key] for key in refused), key=ORDER.index)
        raise RunError(
            f"{directory.path} was started with other settings ({difference}); start a new run in "
            f"another directory, or do the stages again that depend on them: --redo {earliest}"
        )
    again = {*(first[key] for key in changes), *filter(None, (redo,))}
    return min(again, key=ORDER.index, default=None)


def _untouched(directory: RunDir) -> int:
    """Return the place in `ORDER` of the first stage that neither is done nor may be under way."""
    done = [directory.done(stage) for stage in STAGES]
    first = done.index(False) if False in done else len(done)
    begun = first < len(done) and any(
        next(directory.path.glob(pattern), None) for pattern in STAGES[ORDER[first]].writes
    )
    return len(done) if any(done[first:]) else first + begun


def has_begun(directory: RunDir) -> bool:
    """Return whether a run has results that depend on its settings, beyond its questions."""
    sampled = any(directory.split(name).responses.path.exists() for name in SPLITS)
    return sampled or any(directory.done(stage) for stage in STAGES)


def stages_alike(one: RunSettings, other: RunSettings) -> list[str]:
    """Return the stages, from the first on, that give the same results with both settings."""
    changed = _first_stages(one, other).values()
    return ORDER[: min(map(ORDER.index, changed), default=len(ORDER))]


def _first_stages(one: RunSettings, other: RunSettings) -> dict[str, str]:
    """Return the settings that differ, each with the first stage that it changes."""
    used = {"grace", "paper"} & {one.method, other.method}
    stages = {}
    for key in differences(to_dict(one), to_dict(other)):
        prefix = max((p for p in FIRST_STAGE if key == p or key.startswith(p + ".")), key=len)
        if prefix not in {"grace", "paper"} - used:
            stages[key] = FIRST_STAGE[prefix]
    return stages


# --- the environment of a run: versions, git commit and hardware, for config.json and the report

PACKAGES = ("grace-confidence", "torch", "transformers", "peft", "numpy", "scikit-learn")


def describe_environment() -> dict[str, Any]:
    """Return versions, the git commit of the source tree (None outside one) and the hardware."""
    return {
        "versions": {"python": platform.python_version()} | {p: _version(p) for p in PACKAGES},
        "git_commit": _git_commit(),
        "hardware": hardware(),
    }


def hardware() -> str:
    """Return a one-line name of the accelerator or the processor, with its cores."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    threads = torch.get_num_threads()
    used = "1 thread" if threads == 1 else f"{threads} threads"
    return f"{_cpu_name()}, {os.cpu_count()} cores, {used}"


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git_commit() -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
