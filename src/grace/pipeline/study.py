"""A study: one recipe over several tasks, seeds and variants, one run each, one common report.

    [study]
    tasks = ["trivia_qa", "sciq"]     # a folder each
    seeds = 5                         # in it a folder each
    transfer = true                   # rate on one another's test questions too
    [study.task.sciq]                 # settings of one task
    train.epochs = 1
    [study.variant.grace-paper]       # trained otherwise, on the same answers
    train.evidence = "none"

The settings of a variant win over those of a task. A level with a single entry has no folder.
Variants copy what they share with the run beside them.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from grace import plugins
from grace.config import (
    RunSettings,
    from_dict,
    override_settings,
    read_recipe,
    sections,
    setting,
    to_dict,
)
from grace.errors import ConfigError, RunError
from grace.pipeline import (
    adopt_settings,
    code_in,
    has_begun,
    load_run_settings,
    read_run_settings,
    refuse_changes,
    run,
    stages_alike,
)
from grace.pipeline.context import Context
from grace.pipeline.processes import side_by_side
from grace.pipeline.stages.report import read_reports
from grace.store import RunDir, copy_file, read_json, runs_in, write_json

Tree = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySettings:
    """The tasks, seeds and variants of a study."""

    tasks: tuple[str, ...] = setting((), "tasks, a run each; none: data.task", low=0)
    seeds: int = setting(1, "seeds, a run each, counted from `seed`", low=1)
    transfer: bool = setting(False, "rate on the test questions of the other tasks too")
    task: dict[str, Any] = sections("settings of one task")
    variant: dict[str, Any] = sections("settings of other ways to train, by name")


NAMES_CODE = ("model", "data", "grade", "report")  # sections whose settings may name code


class Study(NamedTuple):
    """Settings before they are split up, and where they are from; overrides hold in every run."""

    tree: Tree
    settings: StudySettings
    overrides: tuple[str, ...] = ()
    where: str = "settings"

    def runs(self) -> dict[Path, RunSettings]:
        """Return the settings of every run by its folder, relative to the study's.

        Raises:
            ConfigError: an unknown or impossible setting.
        """
        base = self._settings({}, self.where)
        tasks = self.settings.tasks or (base.data.task,)
        parts = {}
        for task in tasks:
            for seed in range(base.seed, base.seed + self.settings.seeds):
                for name, changes in self._variants():
                    folders = [
                        *([task.rpartition(":")[2]] if len(tasks) > 1 else []),
                        *([f"seed-{seed}"] if self.settings.seeds > 1 else []),
                        *([name] if self.settings.variant else []),
                    ]
                    common: Tree = {"data": {"task": task}, "seed": seed}
                    others = [other for other in tasks if other != task]
                    if self.settings.transfer and others:
                        common["report"] = {"transfer": others}
                    own = self._settings(
                        common,
                        f"study.task.{task}",
                        self.settings.task.get(task, {}),
                        changes,
                    )
                    parts[Path(*folders)] = dataclasses.replace(own, seed=seed)
        return parts

    @property
    def main(self) -> str:
        """The name of what the recipe itself trains, beside its variants."""
        return self._settings({}, self.where).report.name

    def _variants(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        yield self.main, {}
        for name, changes in self.settings.variant.items():
            own = {"report": {"name": name, "estimators": ["grace"]}}
            yield name, _merged(own, changes)

    def _settings(self, common: Tree, where: str, *changes: Mapping[str, Any]) -> RunSettings:
        tree = _merged(self.tree, common)
        for change in changes:
            tree = _merged(tree, change)
        return override_settings(tree, self.overrides, where=where)


def resolve_study(
    path: Path, recipe: Path | None, overrides: Sequence[str], *, seeds: int | None = None
) -> Study:
    """Return the study of a new recipe, or that of an existing run or study with changes.

    Whether what exists accepts the changes is for `run_study` to say.

    Raises:
        ConfigError: an unknown or impossible setting, a new run without a model or a task, or an
            existing one that names code which the user has not named.
    """
    config = RunDir(path).config
    resumed = recipe is None and config.exists()
    if resumed:
        stored = read_json(config)
        study = Study(
            stored["settings"],
            from_dict(StudySettings, stored.get("study", {}), where=str(config)),
            tuple(stored.get("overrides", ())),
        )
    else:
        tree = read_recipe(recipe) if recipe else {}
        section = tree.pop("study", {})
        own = from_dict(StudySettings, section, where=f"{recipe}: study")
        study = Study(tree, own, where=str(recipe) if recipe else "settings")
    _refuse_another_task(study, overrides)
    latest = {override.partition("=")[0]: override for override in (*study.overrides, *overrides)}
    study = study._replace(overrides=tuple(latest.values()))
    if seeds is not None:
        study = study._replace(settings=dataclasses.replace(study.settings, seeds=seeds))
    naming = [one for one in overrides if one.partition(".")[0] in NAMES_CODE]
    plugins.trust(code_in(override_settings({}, naming)))
    for settings in study.runs().values():
        _refuse_unset(settings)
        if resumed:
            plugins.refuse_code(code_in(settings), config)
        else:
            plugins.trust(code_in(settings))
    return study


def run_study(
    path: Path,
    study: Study,
    *,
    redo: str | None = None,
    until: str | None = None,
    jobs: int = 1,
    scored: Scored | None = None,
) -> dict[str, Any]:
    """Bring every run of a study to its end and return their common report.

    Args:
        path: the directory of the study, or of its only run.
        study: what to do.
        redo: a stage to do again in every run, with all that follow it.
        until: the last stage to do in every run; without the report, nothing is returned.
        jobs: tasks and seeds at a time, in processes of their own.
        scored: called with the folder of each task and seed's main run before its report.

    Raises:
        RunError: as `run`, or a run of one kind is asked to become a study.
        ConfigError: `redo` or `until` is not a stage.
    """
    parts = study.runs()
    if list(parts) == [Path()]:
        return run(path, parts[Path()], redo=redo, until=until)
    directory = RunDir(path)
    known = read_json(directory.config) if directory.config.exists() else {}
    if known and "study" not in known and has_begun(directory):
        raise RunError(
            f"{path} is a single run, and {len(parts)} runs were asked for; name a new directory"
        )
    with directory.lock():
        return _run_all(directory, study, parts, redo, until, jobs, scored)


def _run_all(
    directory: RunDir,
    study: Study,
    parts: Mapping[Path, RunSettings],
    redo: str | None,
    until: str | None,
    jobs: int,
    scored: Scored | None,
) -> dict[str, Any]:
    """Start every run before finishing the first, so that a kill leaves one set of settings."""
    for name, own in parts.items():
        if RunDir(directory.path / name).config.exists():
            refuse_changes(RunDir(directory.path / name), own, redo)
    config = {"settings": study.tree, "study": to_dict(study.settings)}
    write_json(directory.config, config | {"overrides": list(study.overrides)})
    for name, own in parts.items():
        part = RunDir(directory.path / name)
        with part.lock():
            adopt_settings(part, own, redo)
    chains: dict[Path, Chain] = {}
    for name, own in parts.items():
        folder = name.parent if study.settings.variant else name
        chains.setdefault(folder, []).append((directory.path / name, own))
    work = functools.partial(_run_chain, until=until, scored=scored)
    side_by_side(work, list(chains.values()), list(map(str, chains)), jobs)
    if until is not None and RunDir(directory.path / next(iter(parts))).manifest("report") is None:
        return {}
    return report_runs([directory.path / name for name in parts], directory.path)


Chain = list[tuple[Path, RunSettings]]
Scored = Callable[[Path], None]


def _run_chain(chain: Chain, until: str | None, scored: Scored | None) -> None:
    """Do a run, then its variants, which share its answers."""
    main, own = chain[0]
    if scored is not None:
        run(main, own, until="score")
        scored(main)
    for path, settings in chain:
        _share(main, path)
        run(path, settings, until=until)


def report_runs(paths: Sequence[Path], out: Path | None = None) -> dict[str, Any]:
    """Return the report of one run or study, or of several side by side, written to `out` if given.

    Raises:
        RunError: a path holds no run, or one that has not finished.
    """
    if len(paths) == 1 and out is None and (paths[0] / "report.json").exists():
        report: dict[str, Any] = read_json(paths[0] / "report.json")
        return report
    runs = [run for path in paths for run in runs_under(path)]
    contexts = [Context(RunDir(run), load_run_settings(run)) for run in runs]
    if out is None:
        with tempfile.TemporaryDirectory() as folder:
            return read_reports(contexts, Path(folder) / paths[0].name)
    return read_reports(contexts, out)


def runs_under(path: Path) -> list[Path]:
    """Return the run at a path, or those of a study.

    Raises:
        RunError: there is none.
    """
    if found := runs_in(path):
        return found
    raise RunError(f"{path} is not a run, and there is none in it; see `grace list runs`")


def _share(source: Path, target: Path) -> None:
    """Copy the finished stages of one run that another would repeat, as it has their settings."""
    if source == target:
        return
    original, copied = RunDir(source), RunDir(target)
    for stage in stages_alike(read_run_settings(source), read_run_settings(target)):
        manifest = original.manifest(stage)
        if manifest is None or copied.manifest(stage) is not None:
            continue
        for name in manifest["outputs"]:
            copy_file(source / name, target / name)
        copied.adopt(stage, original)


def _refuse_another_task(study: Study, overrides: Sequence[str]) -> None:
    tasks = study.settings.tasks
    if tasks and any(override.partition("=")[0] == "data.task" for override in overrides):
        raise ConfigError(
            f"{study.where} names its tasks itself (study.tasks: {', '.join(tasks)}); leave out "
            "--task and --file, or use a recipe without study.tasks"
        )


def _refuse_unset(settings: RunSettings) -> None:
    for key, value, remedy in (
        ("model.path", settings.model.path, "--model DIR or a Hub id"),
        (
            "data.task",
            settings.data.task,
            "--file FILE with your own questions, --task NAME (see `grace list tasks`)",
        ),
    ):
        if not value:
            raise ConfigError(f"{key} is not set; give {remedy}, or a recipe that sets it")


def _merged(tree: Mapping[str, Any], changes: Mapping[str, Any]) -> Tree:
    """Return nested sections with changes on top; neither argument is touched."""
    merged = copy.deepcopy(dict(tree))
    for key, value in changes.items():
        old = merged.get(key)
        both = isinstance(value, Mapping) and isinstance(old, Mapping)
        merged[key] = _merged(old, value) if both else copy.deepcopy(value)  # type: ignore[arg-type]
    return merged
