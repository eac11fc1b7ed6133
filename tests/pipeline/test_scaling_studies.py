"""`grace scale` on a study: rows of every run, a joint summary, and pools that variants share."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from grace.pipeline.scaling import ScaleSettings, scale_runs
from grace.pipeline.stages.report import report_runs
from grace.store import RunDir, read_json

CHOSEN = ScaleSettings(samples=4, orders=2)


@pytest.fixture(scope="module")
def study(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds, the first of them trained in two ways; scaled."""
    path = tmp_path_factory.mktemp("study") / "study"
    for folder, seed, name in (
        ("seed-0/grace", 0, "grace"),
        ("seed-0/gentle", 0, "gentle"),
        ("seed-1/grace", 1, "grace"),
    ):
        shutil.copytree(finished / "run", path / folder)
        config = read_json(path / folder / "config.json")
        config["settings"]["seed"] = seed
        config["settings"]["report"]["name"] = name
        if name == "gentle":
            config["settings"]["report"]["estimators"] = ["grace"]
            config["settings"]["paper"]["gamma"] = 0.5
        (path / folder / "config.json").write_text(json.dumps(config))
    (path / "config.json").write_text(json.dumps(config | {"study": {}}))
    scale_runs(path, CHOSEN)
    return path


def rows_of(rows: list[Any], strategy: str, budget: int) -> list[Any]:
    return [row for row in rows if (row["strategy"], row["budget"]) == (strategy, budget)]


def test_the_rows_of_every_run_are_there_under_the_name_of_what_was_trained(study: Path):
    rows = read_json(study / "scaling.json")["rows"]
    assert [row["seeds"] for row in rows_of(rows, "grace-es", 4)] == [[0], [1]]
    assert [row["seeds"] for row in rows_of(rows, "gentle-es", 4)] == [[0]]
    assert [row["estimator"] for row in rows_of(rows, "gentle-es", 4)] == ["gentle"]
    assert len(rows_of(rows, "sc@gentle", 2)) == 1


def test_the_joint_rows_are_means_over_the_seeds(study: Path):
    result = read_json(study / "scaling.json")
    for strategy in ("sc", "sc@grace", "grace-sc", "grace-es"):
        for budget in (1, 4):
            (row,) = rows_of(result["joint"], strategy, budget)
            assert row["seeds"] == [0, 1]
            each = rows_of(result["rows"], strategy, budget)
            assert [own["seeds"] for own in each] == [[0], [1]]
            for key in ("accuracy", "mean_samples", "mean_tokens"):
                mean = sum(own[key] for own in each) / len(each)
                assert row[key] == pytest.approx(mean, abs=2e-6)
            assert row["n"] == 10
            low, high = row["interval"]
            assert low <= row["accuracy"] <= high


def test_the_study_compares_at_equal_accuracy(study: Path):
    result = read_json(study / "scaling.json")
    equal = {(row["strategy"], row["reference"]): row["seeds"] for row in result["equal_accuracy"]}
    assert equal["grace-es", "sc"] == [0, 1] and equal["gentle-es", "sc@gentle"] == [0]
    report = read_json(study / "report.json")
    assert report["scaling_joint"] == result["joint"]
    assert {row["answers"] for row in report["discrimination"]} == {"grace", "gentle"}


def test_a_report_of_some_runs_joins_what_was_scaled(study: Path, tmp_path: Path):
    paths = [study / "seed-0/grace", study / "seed-1/grace"]
    report = report_runs(paths, tmp_path / "both")
    joint = read_json(study / "scaling.json")["joint"]
    grace = [row for row in joint if "gentle" not in row["strategy"] and row["seeds"] == [0, 1]]
    assert report["scaling_joint"] == grace


def test_variants_vote_over_the_same_samples_of_the_backbone(study: Path):
    name = "test/pool-4-t0.8/responses.jsonl"
    first, second, other = (
        (study / folder / name).read_bytes()
        for folder in ("seed-0/grace", "seed-0/gentle", "seed-1/grace")
    )
    assert first == second != other
    seconds = [
        RunDir(study / folder).seconds_per_answer(RunDir(study / folder).split("test").pool(4, 0.8))
        for folder in ("seed-0/grace", "seed-0/gentle")
    ]
    assert seconds[0] == pytest.approx(seconds[1], abs=1e-6)  # copied: not drawn twice, nor free


def test_the_reports_of_the_study_and_of_its_runs_show_the_rows(study: Path):
    for folder, seeds in ((study, {0, 1}), (study / "seed-1/grace", {1})):
        report = read_json(folder / "report.json")
        assert {seed for row in report["scaling"] for seed in row["seeds"]} == seeds
        assert "What more samples buy" in (folder / "report.html").read_text("utf-8")
    strategies = [row["strategy"] for row in read_json(study / "report.json")["scaling"]]
    assert strategies.count("sc") == 2 * 3  # of two seeds at three budgets, shared by variants
