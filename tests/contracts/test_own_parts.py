"""A task, a grader, an estimator and a strategy of one's own: one file each, used end to end.

An engine's is in `test_engines.py`. A file inside the package is found by its name instead
(`tests/test_plugins.py`).
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tiny_run
from grace.cli import main
from grace.store import RunDir, read_json

FILES = {
    "own_task": """
from functools import partial

from grace.records import Question
from grace.tasks.forms import OpenTask
from grace.tasks.rows import Pools, Row


def rows(split):
    return [Row(f"{split}[{n}]", {"id": f"{split}-{n}", "n": n}) for n in range(40)]


def parse(row):
    text = f"How much is {row.fields['id']} twice?"
    return Question(row.fields["id"], "doubles", text, (str(2 * row.fields["n"]),))


DOUBLES = OpenTask(
    "doubles", lambda name, data: Pools(*map(partial(partial, rows), ("a", "b", "c"))), parse
)
""",
    "own_grader": """
def even(text, question):
    return int(question.id.partition("-")[2]) % 2 == 0
""",
    "own_estimator": """
from dataclasses import dataclass

from grace.estimators import Fitted


@dataclass(frozen=True, slots=True)
class Flat:
    def fit(self, known, engine, seed):
        share = sum(known.train.correct) / len(known.train.correct)
        return Fitted(lambda samples: [share / 2] * len(samples.responses))


FLAT = Flat
""",
    "own_strategy": """
from dataclasses import dataclass
from typing import ClassVar

import numpy as np


@dataclass(frozen=True, slots=True)
class Second:
    reads_confidence: ClassVar[bool] = False

    def stops(self, table):
        return np.full(len(table.answer_RT), 2)

    def chooses(self, table):
        return table.answer_RT[:, 1]
""",
}


def grace(*arguments: object) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([str(argument) for argument in arguments])
    assert not stopped.value.code


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A finished run in a folder with the four files, which are named on the command line."""
    folder = tmp_path_factory.mktemp("own")
    for name, source in FILES.items():
        (folder / f"{name}.py").write_text(source)
    model = tiny_run.write_model(folder / "model")
    own = ["grade.grader=own_grader:even", 'report.estimators=["grace","own_estimator:FLAT"]']
    given = [part for setting in own for part in ("--set", setting)]
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(action="ignore"):
        patch.chdir(folder)
        patch.setenv("GRACE_TRUST", "")
        task = ["--task", "own_task:DOUBLES"]
        grace("run", folder / "run", "--model", model, *task, *tiny_run.settings(), *given)
        yield folder / "run"


def test_a_task_is_one_file(run: Path) -> None:
    asked = RunDir(run).split("test").questions.read()
    assert len(asked) == 10
    assert all(row.text == f"How much is {row.id} twice?" for row in asked)


def test_a_grader_is_one_file(run: Path) -> None:
    grades = RunDir(run).split("train").grades.read()
    assert {row.correct for row in grades} == {True, False}
    for row in grades:
        assert row.correct == (int(row.id.partition("#")[0].partition("-")[2]) % 2 == 0)


def test_an_estimator_is_one_file(run: Path) -> None:
    grades = RunDir(run).split("train").grades.read()
    share = sum(row.correct for row in grades) / len(grades)
    rated = RunDir(run).split("test").confidences("own_estimator:FLAT").read()
    assert {row.confidence for row in rated} == {share / 2}
    shown: Any = read_json(run / "report.json")
    assert "own_estimator:FLAT" in {row["estimator"] for row in shown["rows"]}


def test_a_strategy_is_one_file(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    options = ("--budget", 5, "--strategy", "own_strategy:Second", "--json")
    grace("ask", run, "How much is one twice?", *options)
    assert json.loads(capsys.readouterr().out)["samples"] == 2
