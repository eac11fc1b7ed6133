"""A run on several sources: a file for each, or a column `source`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import grace
import tiny_run
from grace.cli import main
from grace.config import DataSettings, override_settings
from grace.pipeline import run
from grace.pipeline.scaling.guarantees import choose_threshold
from grace.pipeline.stages import report as stage
from grace.probe.rows import sourced, sources_in
from grace.store import RunDir, read_card
from grace.tasks.jsonl import TASK

ASKED = {"sums": "What is {} and 7?", "lakes": "Is {} a lake or a sea, or neither?"}


def rows(source: str) -> list[dict[str, Any]]:
    return [
        {"id": f"q{n}", "question": ASKED[source].format(n), "answers": [str(n)]} for n in range(75)
    ]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    tiny_run.write_model(folder / "model")
    mix = folder / "mix"
    mix.mkdir()
    for source in ASKED:
        tiny_run.write_lines(mix / f"{source}.jsonl", rows(source))
    column = [
        row | {"source": name, "id": f"{name}/{row['id']}"} for name in ASKED for row in rows(name)
    ]
    tiny_run.write_lines(folder / "column.jsonl", column)
    return folder


def settings(made: Path, file: str) -> Any:
    where = (f"model.path={made / 'model'}", "data.task=jsonl", f"data.file={made / file}")
    size = ("data.train=80", "data.test=60", "method=grace", "grace.layer=1")
    rated = 'report.estimators=["grace","likelihood"]'
    return override_settings({}, [*where, *tiny_run.FAST, *size, rated])


def test_files_of_a_folder_and_a_column_are_the_same_sources(made: Path) -> None:
    drawn = [
        TASK.questions("train", DataSettings(file=str(made / file), train=80), 0)
        for file in ("mix", "column.jsonl")
    ]
    assert drawn[0] == drawn[1] and {question.source for question in drawn[0]} == {*ASKED}
    assert len({question.id for question in drawn[0]}) == 80


def test_a_run_fits_sources_and_reports_each(made: Path, monkeypatch: Any) -> None:
    report = run(made / "run", settings(made, "mix"))
    card = read_card(RunDir(made / "run").adapter)
    assert card["evidence"]["familiar"]["near"] > 0
    tasks = {row["task"]: row["n"] for row in report["rows"] if row["estimator"] == "grace"}
    assert [*tasks] == ["mix", "mix: lakes", "mix: sums"]
    assert tasks["mix"] == tasks["mix: lakes"] + tasks["mix: sums"]
    assert "mix: lakes" in (made / "run" / "report.md").read_text()
    assert grace.load(made / "run").ask("What is 3 and 7?").familiar is not None
    stored = RunDir(made / "run").split("test").questions.read()
    assert {one.source for one in stored} == {*ASKED}
    again = json.loads((made / "run" / "report.json").read_text())
    assert run(made / "run", settings(made, "mix")) == again == report  # resumes
    monkeypatch.setattr(stage, "FEWEST_OF_A_PART", tasks["mix: lakes"] + 1)
    context: Any = SimpleNamespace(directory=RunDir(made / "run"))
    assert f"have no table: lakes {tasks['mix: lakes']}" in " ".join(stage._small_sources(context))


def test_the_threshold_of_a_run_holds_in_each_of_its_sources(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of its answers are graded as right, but of those of `lakes` a quarter."""
    size = ("data.train=60", "data.validation=40", "data.test=40", "grade.grader=tiny_run:lakeless")
    where = [f"model.path={made / 'model'}", "data.task=jsonl", f"data.file={made / 'mix'}"]
    rated = ("method=grace", "grace.layer=1", 'report.estimators=["grace"]')
    path = made / "threshold"
    run(path, override_settings({}, [*where, *tiny_run.FAST, *size, *rated]))
    easy = {"target": 0.6, "delta": 0.2}
    asked = RunDir(path).split("validation").questions.read()
    counts = {name: sum(one.source == name for one in asked) for name in ASKED}
    mixed = choose_threshold(path, **easy, mixture=True)
    assert mixed.sources == () and mixed.tau is not None
    assert mixed.promise.startswith(f"confidence >= {mixed.tau:g}: at least 60.0% right with")
    each = choose_threshold(path, **easy)
    assert {one["source"]: one["n"] for one in each.sources} == counts and each.tries == 2
    assert each.tau is None and "questions of lakes: " in each.promise
    loose = choose_threshold(path, target=0.05, delta=0.2)
    assert loose.tau is not None and "in each of lakes, sums with" in loose.promise
    assert grace.load(path).promise == loose  # which the server shows as it is
    assert loose.n == sum(counts.values()) and loose.bound == min(s["bound"] for s in loose.sources)
    test = loose.test or {}
    for name in ("n", "accepted", "right"):
        assert sum(one[name] for one in test["sources"].values()) == test[name]
    for options in ([], ["--mixture"]):
        with pytest.raises(SystemExit):
            main(["threshold", str(path), "--target-accuracy", "0.05", "--delta", "0.2", *options])
        shown = capsys.readouterr().out
        for name, n in counts.items():
            assert bool(re.search(rf"^ {name} +[\d.]+% of {n} ", shown, re.M)) != bool(options)
    with pytest.raises(SystemExit):
        main(["threshold", str(path), "--target-accuracy", "0.6", "--delta", "0.2"])
    assert "in the mixture of these sources alone, add --mixture" in capsys.readouterr().out
    voted = choose_threshold(path, target=0.05, delta=0.2, mode="early-stop", budget=2)
    assert [one["source"] for one in voted.sources] == ["lakes", "sums"]


@pytest.mark.parametrize(
    "sizes, expected",
    [
        ({"a": 30, "b": 40}, {"a": 30, "b": 40}),
        ({"a": 30, "b": 5}, {}),  # too few: of the largest
        ({"a": 30, "b": 15, "c": 10}, {"a": 30, "": 25}),
        ({"a": 5, "b": 5}, {}),
        ({}, {}),
    ],
)
def test_small_sources_count_as_one(sizes: dict[str, int], expected: dict[str, int]) -> None:
    names = [name for name, size in sizes.items() for _ in range(size)]
    found = sourced(names, [*range(len(names))])
    assert [group.question for group in found] == [*range(len(names))]
    several = sources_in(found)
    assert dict(zip(*np.unique(several, return_counts=True), strict=True)) == expected
