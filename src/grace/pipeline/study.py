"""A study: one recipe over several tasks, seeds and variants, one run each, one common report.

    [study]
    tasks = ["trivia_qa", "sciq"]     # a folder each
    seeds = 5                         # in it a folder each
    transfer = true                   # rate on one another's test questions too
    [study.task.sciq]                 # settings of one task
    data.train = 500
    [study.variant.grace-paper]       # other settings, beside those of the recipe
    method = "paper"

The settings of a variant win over those of a task. A level with a single entry has no folder.
Variants copy the stages that they share with the run beside them.

A single run is a study without levels: `run` (`grace.run`, `grace run`) checks the arguments of a
user before it starts any.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib.util
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from grace import plugins
from grace.config import (
    RunSettings,
    assignment,
    from_dict,
    is_missing,
    merged,
    override_settings,
    parse_value,
    read_recipe,
    refuse_earlier,
    sections,
    setting,
    to_dict,
)
from grace.engines.base import engine_class
from grace.errors import LOCAL, ConfigError, MissingError, RunError
from grace.grading import grader_of
from grace.pipeline import (
    adopt_settings,
    check_start,
    code_in,
    has_begun,
    read_run_settings,
    stages_alike,
    stages_left,
)
from grace.pipeline import run as run_one
from grace.pipeline.processes import side_by_side
from grace.pipeline.settings import absolute, absolute_override, each_absolute
from grace.pipeline.stages.report import report_runs
from grace.pipeline.stages.score import estimator_of
from grace.progress import say
from grace.report import Report, checked_report
from grace.store import RunDir, is_run, is_study, read_json, runs_in, write_json
from grace.tasks import load_task
from grace.tasks.prompts import draw_training

Tree = dict[str, Any]
Chain = list[tuple[Path, RunSettings]]
Scored = Callable[[Path], None]
FOLDER = re.compile(r"[^./\x00-\x1f][^/\x00-\x1f]*")  # a name that stays in its place
NAMES_CODE = ("model", "data", "grade", "report")  # sections whose settings may name code
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySettings:
    """The tasks, seeds and variants of a study."""

    tasks: tuple[str, ...] = setting((), "tasks, a run each; none: data.task", low=0)
    seeds: int = setting(1, "seeds, a run each, counted from `seed`", low=1)
    transfer: bool = setting(False, "rate on the test questions of the other tasks too")
    task: dict[str, Any] = sections("settings of one task")
    variant: dict[str, Any] = sections("settings of other ways to train, by name")


class Study(NamedTuple):
    """The settings of a recipe and its `[study]` section."""

    tree: Tree
    settings: StudySettings
    overrides: tuple[str, ...] = ()  # hold in every run
    where: str = "settings"  # name of the recipe in errors

    def runs(self) -> dict[Path, RunSettings]:
        """Return the settings of every run by its folder, relative to the study's."""
        from_dict(RunSettings, self.tree, where=self.where)  # its own mistakes, before overrides
        base = self._resolved("settings")
        tasks = self.settings.tasks or (base.data.task,)
        seeds = range(base.seed, base.seed + self.settings.seeds)
        variants: list[tuple[str, Tree]] = [(base.report.name, {})]
        for name, changes in self.settings.variant.items():
            own = {"report": {"name": name, "estimators": ["grace"]}}
            variants.append((name, merged(own, changes)))
        runs = {}
        for task, seed, (variant, changed) in itertools.product(tasks, seeds, variants):
            names = {"task": task.rpartition(":")[2], "seed": f"seed-{seed}", "variant": variant}
            if self.settings.variant and not FOLDER.fullmatch(variant):
                why = "it is empty, begins with a dot or has a slash"
                raise ConfigError(f"{self.where}: {variant!r} names no folder: {why}; rename it")
            folder = Path(*(names[level] for level in self.levels))
            if folder in runs:
                raise ConfigError(f"{self.where}: two runs are named {folder}; rename one")
            common: Tree = {"data": {"task": task}, "seed": seed}
            others = [other for other in tasks if other != task]
            if self.settings.transfer and others:
                common["report"] = {"transfer": others}
            changes = (common, self.settings.task.get(task, {}), changed)
            settings = self._resolved(f"{self.where}: study", *changes)
            runs[folder] = dataclasses.replace(settings, seed=seed)
        return runs

    @property
    def levels(self) -> list[str]:
        """The levels of folders: task, seed and variant, each only if there are several."""
        own = self.settings
        several = {"task": len(own.tasks) > 1, "seed": own.seeds > 1, "variant": bool(own.variant)}
        return [level for level, needed in several.items() if needed]

    @property
    def main(self) -> str:
        """The name of what the recipe itself trains, beside its variants."""
        return self._resolved("settings").report.name

    def _resolved(self, where: str, *changes: Tree) -> RunSettings:
        tree = functools.reduce(merged, changes, self.tree)
        return override_settings(copy.deepcopy(tree), self.overrides, where=where)


# --- what arguments ask for


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


def _override(key: str, value: Any) -> str:
    """Return KEY=VALUE."""
    if value is None:
        raise ConfigError(f"{key} is None; leave it out for its default")
    return assignment(key, value)


def resolve_study(
    path: Path, recipe: Path | None, overrides: Sequence[str], *, seeds: int | None = None
) -> Study:
    """Return the study of a new recipe, or an existing one (or a task of it) with changes."""
    config = RunDir(path).config
    resumed = recipe is None and config.exists()
    study = _stored_study(config) if resumed else _new_study(recipe)
    typed = [absolute_override(one) for one in overrides]
    latest = {one.partition("=")[0].strip(): one for one in (*study.overrides, *typed)}
    if study.settings.tasks and (override := latest.pop("data.task", None)):
        study = _only_task(study, parse_value(override.partition("=")[2].strip()))
    study = study._replace(overrides=tuple(latest.values()))
    if seeds is not None:
        study = study._replace(settings=dataclasses.replace(study.settings, seeds=seeds))
    naming = [one for one in typed if one.partition(".")[0] in NAMES_CODE]
    plugins.trust(code_in(override_settings({}, naming)))
    runs = study.runs()
    for settings in runs.values():
        _refuse_unset(settings)
        if resumed:
            plugins.refuse_code(code_in(settings), config)
        else:
            plugins.trust(code_in(settings))
    _refuse_other_folders(RunDir(path), study, len(runs))
    return study


def _new_study(recipe: Path | None) -> Study:
    if recipe is None:
        return Study({}, StudySettings())
    tree = read_recipe(recipe)
    where = f"{recipe}: study"
    own = from_dict(StudySettings, tree.pop("study", {}), where=where)
    for name in own.task:
        if own.tasks and name not in own.tasks:
            raise ConfigError(
                f"{where}.task.{name}: name one of study.tasks: {', '.join(own.tasks)}"
            )
    for name, changes in (own.task | own.variant).items():
        if "seed" in changes:
            raise ConfigError(f"{where}: {name} has a seed; set seed at the top, or study.seeds")
    own = dataclasses.replace(own, task=each_absolute(own.task), variant=each_absolute(own.variant))
    return Study(absolute(tree), own, where=str(recipe))


def _stored_study(config: Path) -> Study:
    stored = read_json(config)
    own = from_dict(StudySettings, stored.get("study", {}), where=str(config))
    refuse_earlier((stored["settings"], *own.task.values(), *own.variant.values()), config)
    return Study(stored["settings"], own, tuple(stored.get("overrides", ())), str(config))


def _only_task(study: Study, task: str) -> Study:
    """Return the part of a study that is about one of its tasks."""
    tasks = study.settings.tasks
    if task not in tasks:
        raise ConfigError(
            f"task {task} is not among those of {study.where} (study.tasks: {', '.join(tasks)}); "
            "choose one of these with --task, leave out --task and --file to run all of them, or "
            "use a recipe without study.tasks"
        )
    return study._replace(settings=dataclasses.replace(study.settings, tasks=(task,)))


def _refuse_unset(settings: RunSettings) -> None:
    """Refuse a run without a model or a task."""
    if not settings.model.path:
        raise ConfigError(
            "model.path is not set; give --model DIR or a Hub id, or a recipe that sets it"
        )
    if not settings.data.task:
        raise ConfigError(
            "data.task is not set; give --file FILE with your own questions, --task NAME (see "
            "`grace list tasks`), or a recipe that sets it"
        )


def _refuse_other_folders(directory: RunDir, study: Study, count: int) -> None:
    """Refuse to start runs in a directory whose runs are in other folders."""
    if not directory.config.exists():
        return
    stored = read_json(directory.config)
    if "study" in stored:
        levels = _stored_study(directory.config).levels
        if levels != study.levels:
            wanted = f"one run per {' and '.join(study.levels)}" if study.levels else "a single run"
            raise RunError(
                f"{directory.path} holds one run per {' and '.join(levels)}, and {wanted} was "
                "asked for; name a new directory"
            )
    elif study.levels and has_begun(directory):
        raise RunError(
            f"{directory.path} is a single run, and {count} runs were asked for; name a new "
            "directory"
        )


# --- what cannot be meant


def check_packages(what: str) -> None:
    """Refuse to start work that the light install cannot do."""
    for package in LOCAL:
        if importlib.util.find_spec(package) is None:
            raise MissingError(what, package)


def check_place(path: Path, *, new: bool = True) -> None:
    """Refuse a path that is in use otherwise; `new`: the command could start a run here."""
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
    data = settings.data
    if (RunDir(path).config.exists() and not again) or not (data.file or data.dir):
        return
    if data.file and data.dir and data.task == "jsonl":
        raise ConfigError(
            f"the questions are in {data.file} or in {data.dir}, not in both; leave out --file or "
            "--data (data.file, data.dir)"
        )
    draw_training(load_task(data.task), data, settings.seed)


# --- the runs


def run_study(
    path: Path,
    study: Study,
    *,
    redo: str | None = None,
    until: str | None = None,
    jobs: int = 1,
    scored: Scored | None = None,
) -> dict[str, Any]:
    """Bring every run of a study to its end and return their common report."""
    runs = study.runs()
    directory = RunDir(path)
    if not study.levels:
        return run_one(path, runs[Path()], redo=redo, until=until)
    paths = {path / folder: settings for folder, settings in runs.items()}
    with directory.lock():
        for run_path, settings in paths.items():
            check_start(RunDir(run_path), settings, redo=redo, until=until)
        _start_all(directory, study, paths, redo)
        chains: dict[Path, Chain] = {}
        for folder, settings in runs.items():
            name = folder.parent if study.settings.variant else folder
            chains.setdefault(name, []).append((path / folder, settings))
        work = functools.partial(_run_chain, until=until, scored=scored)
        side_by_side(work, list(chains.values()), list(map(str, chains)), jobs)
        if not all(RunDir(run_path).done("report") for run_path in paths):
            return {}
        return report_runs(list(paths), path)


def _start_all(
    directory: RunDir, study: Study, paths: Mapping[Path, RunSettings], redo: str | None
) -> None:
    """Write all settings before any run goes on, so that a kill leaves one set of them."""
    if redo is not None:
        directory.forget("report", ("report.*", "figures", "scaling.*"))
    config = {"settings": study.tree, "study": to_dict(study.settings)}
    write_json(directory.config, config | {"overrides": list(study.overrides)})
    for path, settings in paths.items():
        with RunDir(path).lock():
            adopt_settings(RunDir(path), settings, redo)


def _run_chain(chain: Chain, until: str | None, scored: Scored | None) -> None:
    """Do a run, then its variants, which share its answers."""
    main, _ = chain[0]
    for path, settings in chain:
        if path != main:
            _share(main, path)
        if stages_left(RunDir(path), settings, until=until):
            say(f"run {path}")
        if path == main and scored is not None:
            run_one(main, settings, until="score")
            scored(main)
        run_one(path, settings, until=until)


def _share(source: Path, target: Path) -> None:
    """Copy the finished stages of one run that would give the same results in another."""
    finished, other = RunDir(source), RunDir(target)
    for stage in stages_alike(read_run_settings(source), read_run_settings(target)):
        if finished.done(stage) and not other.done(stage):
            other.adopt(stage, finished)
