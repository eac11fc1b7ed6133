"""Studies of several seeds: one run per seed in a folder, resumed and refused like one run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trials

import grace
from grace.errors import ConfigError, RunError
from grace.pipeline.study import resolve_study

QUICK = ("paper.epochs=1",)


def resume_without_recipe(path: Path, *changes: str, redo: str | None = None) -> None:
    """Do what `grace run RUN` does for a run that exists."""
    trials.run(path, resolve_study(path, None, changes), redo)


@pytest.fixture(scope="module")
def study(reference: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of two seeds, killed in the second one, then resumed by name only."""
    path = tmp_path_factory.mktemp("study") / "study"
    chosen = trials.settings(reference.inputs, *QUICK)
    ended = trials.kill_in("report", 0, trials.run, path, chosen, None, 2)
    assert (ended.code, ended.stage) == (-9, "report")
    assert not (path / "seed-1" / "stages").exists()
    ended = trials.finish(resume_without_recipe, path)
    assert ended.code == 0, ended.said
    return path


def test_a_study_of_no_seeds_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="seeds is 0; use 1 or more"):
        grace.run(tmp_path / "run", model="pocket", task="pocket_people", seeds=0)


def test_a_study_resumes_by_its_name(study: Path) -> None:
    report = json.loads((study / "report.json").read_text())
    assert sorted({row["seed"] for row in report["rows"]}) == [0, 1]
    assert json.loads((study / "config.json").read_text())["study"]["seeds"] == 2


def test_a_run_of_one_seed_does_not_become_a_study(reference: Any, tmp_path: Path) -> None:
    run = reference.copy(tmp_path)
    with pytest.raises(RunError, match="is a single run, and 2 runs were asked for"):
        resolve_study(run, None, (), seeds=2)
    assert reference.differences(run) == []


def redo_report(path: Path) -> None:
    resume_without_recipe(path, "report.bins=5", redo="report")


def test_redo_reaches_every_seed_of_a_study(study: Path) -> None:
    ended = trials.finish(redo_report, study)
    said = "".join(f"run {study / f'seed-{seed}'}\nstage report\n" for seed in (0, 1))
    assert (ended.code, ended.said) == (0, said)
    assert json.loads((study / "config.json").read_text())["overrides"] == ["report.bins=5"]
    for folder in (study / "seed-0", study / "seed-1"):
        assert json.loads((folder / "config.json").read_text())["settings"]["report"]["bins"] == 5
    assert json.loads((study / "report.json").read_text())["evaluation"]["bins"] == 5
