"""`grace.run` and `grace.measure`: what the commands do, as functions that return a report."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import grace
from grace.cli import app
from grace.errors import ConfigError, DataError, GraceError, RunError
from grace.pipeline import study as studies
from grace.report import Report, from_json

ROWS = [
    {"confidence": 0.1 * (n % 10), "correct": n % 10 > n % 7, "question": f"What is {n // 2}?"}
    for n in range(60)
]


def rest(report: Report) -> Report:
    """Return a report without its name and date, and what is named after it."""
    rows = [dataclasses.replace(row, estimator="") for row in report.rows]
    summaries = [dataclasses.replace(row, estimator="") for row in report.summaries]
    blank = {"name": "", "created": "", "notes": (), "validation": ()}
    return dataclasses.replace(report, rows=tuple(rows), summaries=tuple(summaries), **blank)


def test_a_setting_from_python_is_what_it_is_there(tmp_path: Path):
    named = {"model": "pocket", "task": "pocket_people"}
    text = 'Reply "briefly" \N{GRINNING FACE}'
    study = studies.resolve(tmp_path / "run", None, named, [studies._override("data.system", text)])
    (settings,) = study.runs().values()
    assert settings.data.system == text
    with pytest.raises(ConfigError, match=r"data\.system is None; leave it out"):
        grace.run(tmp_path / "run", **named, settings={"data.system": None})


def test_a_mistake_in_the_questions_leaves_a_run_that_is_sampled_again_as_it_was(
    finished: Path, tmp_path: Path
):
    path = Path(shutil.copytree(finished / "run", tmp_path / "run"))
    for wrong in ({"file": "typo.csv"}, {"settings": {"data.train": 5000}}):
        with pytest.raises(GraceError):
            grace.run(path, redo="sample", **wrong)
    assert (path / "report.json").exists() and (path / "adapter/grace.json").exists()


def test_measuring_rows_is_what_the_command_says_of_their_file(tmp_path: Path):
    file = tmp_path / "scored.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    shown = CliRunner().invoke(app, ["measure", str(file), "--json"])
    said = from_json(Report, json.loads(shown.stdout))
    assert rest(grace.measure(ROWS)) == rest(grace.measure(file)) == rest(said)
    assert said.rows[0].n == 60 and said.name == "scored"


def test_rows_of_datasets_and_numpy_numbers_are_measured():
    import datasets

    numbers = [row | {"confidence": np.float32(0.5), "correct": np.True_} for row in ROWS]
    assert grace.measure(numbers).rows[0].brier == pytest.approx(0.25)
    table = datasets.Dataset.from_list(ROWS)
    assert rest(grace.measure(table)) == rest(grace.measure(ROWS))
    several = grace.measure(ROWS, numbers)
    assert [row.estimator for row in several.rows] == ["rows 0", "rows 1"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"confidence": 2, "correct": True}], "row 0: confidence is 2"),
        ([{"correct": True}], 'row 0: "confidence" is missing'),
        ([{"confidence": 0.5, "correct": None}], "the rows: 1 responses, none of them graded"),
        ([0.5], "row 0 is float; give each row as a dict"),
    ],
)
def test_a_row_that_cannot_be_measured_is_named(rows: Any, message: str):
    with pytest.raises(DataError, match=message):
        grace.measure(rows)


def test_a_finished_run_returns_its_report(finished: Path):
    report = grace.run(finished / "run")
    assert report == from_json(Report, json.loads((finished / "run" / "report.json").read_text()))
    assert any(row.estimator == "grace" for row in report.rows)


def test_a_run_takes_settings_by_name_and_refuses_other_ones_than_before(finished: Path):
    with pytest.raises(RunError, match=r"paper\.epochs: \d+ -> 99"):
        grace.run(finished / "run", settings={"paper.epochs": 99})
    with pytest.raises(RunError, match=r"seed: \d+ -> 7"):
        grace.run(finished / "run", seed=7)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "no/such/model/here", "task": "pocket_people"}, "no/such/model/here"),
        ({"model": "no/such", "task": "pocket_people", "settings": {"epoch": 1}}, "epoch"),
    ],
)
def test_a_run_that_cannot_be_is_refused_before_it_begins(
    options: Any, message: str, tmp_path: Path
):
    with pytest.raises(GraceError, match=message):
        grace.run(tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()
