"""`grace scale` on a tiny run: pools that resume byte by byte, and what they show."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trials

import grace
from grace.engines.transformers import TransformersEngine
from grace.errors import ConfigError, RunError
from grace.pipeline import load_run_settings, replays, run
from grace.pipeline.context import open_run
from grace.pipeline.replays import read_replay
from grace.pipeline.scaling import ScaleSettings, pools, scale_runs
from grace.pipeline.scaling.pools import read_pool
from grace.records import Vote
from grace.report import Report, from_json, to_json
from grace.scaling import fit_vote, pair_wins, replay
from grace.scaling.replaying import outcomes
from grace.store import RunDir, read_json
from grace.strategies import FittedVote, Policy, decide, load
from grace.strategies.tally import VoteTable

CHOSEN = ScaleSettings(samples=6, estimators=("likelihood",), orders=4)
RATED = ("test/pool-6-t0.8/confidences/likelihood.jsonl",)
POOLED = tuple(
    f"test/{model}pool-6-t0.8/{table}.jsonl"
    for model in ("", "tuned/")
    for table in ("responses", "grades")
)


@pytest.fixture(scope="module")
def scaled(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was scaled; leave it as it is."""
    path = tmp_path_factory.mktemp("scaled") / "run"
    shutil.copytree(finished / "run", path)
    scale_runs(path, CHOSEN)
    return path


def pool_of(path: Path, side: str, *estimators: str) -> Any:
    test = RunDir(path).split("test")
    return read_pool((test.tuned if side == "tuned" else test).pool(6, 0.8), estimators)


def rows_of(path: Path, strategy: str) -> dict[int, Any]:
    rows = read_json(path / "scaling.json")["rows"]
    return {row["budget"]: row for row in rows if row["strategy"] == strategy}


def test_every_strategy_is_there_at_every_budget_and_says_whose_samples_vote(scaled: Path):
    rows = read_json(scaled / "scaling.json")["rows"]
    counting = ("sc", "asc", "asc,rule=beta", "esc")
    base = {*counting, "likelihood-sc", "likelihood-es"}
    tuned = {f"{name}@grace" for name in counting}
    tuned |= {f"grace-{rule}" for rule in ("sc", "es", "cisc", "best", "vote")}
    assert {row["strategy"]: row["answers"] for row in rows} == (
        dict.fromkeys(base, "base") | dict.fromkeys(tuned, "grace")
    )
    assert {row["budget"] for row in rows} == {1, 2, 4, 6}
    assert len(rows) == 4 * len(base | tuned)


def test_the_rows_are_the_replay_of_the_stored_samples(scaled: Path):
    for side, names in (("tuned", ("sc", "grace-sc", "grace-es")), ("base", ("sc", "esc"))):
        pool = pool_of(scaled, side, *(["grace"] if side == "tuned" else []))
        expected = replay(pool, names, budgets=(1, 2, 4, 6), orders=4, seed=0)
        for name in names:
            shown = f"{name}@grace" if side == "tuned" and name == "sc" else name
            for budget, row in rows_of(scaled, shown).items():
                for key, measure in (("accuracy", "accuracy"), ("mean_samples", "samples")):
                    value = expected.estimate(name, budget, measure).value
                    assert row[key] == pytest.approx(value, abs=1e-6)
                used = np.arange(1, budget + 1) @ np.array(row["used"])
                assert used == pytest.approx(row["mean_samples"], abs=1e-4)


def test_the_vote_is_fitted_to_validation_samples_and_used_live(scaled: Path):
    pool = read_pool(RunDir(scaled).split("validation").tuned.pool(8, 0.8), ["grace"])
    model, fitted = grace.load(scaled), fit_vote(pool, seed=0)
    assert model.fitted == fitted != FittedVote()
    (curve,) = replay(
        pool_of(scaled, "tuned", "grace"),
        [Policy("grace-vote", fitted, "grace")],
        budgets=(1, 2, 4, 6),
        orders=4,
        seed=0,
    ).curves.values()
    for at, row in enumerate(rows_of(scaled, "grace-vote").values()):
        assert row["accuracy"] == pytest.approx(curve.value_MBQ[0, at].mean(), abs=1e-6)
        assert row["mean_samples"] == pytest.approx(curve.value_MBQ[1, at].mean(), abs=1e-6)
        assert row["threshold"] == pytest.approx(fitted.threshold)
    asked: dict[str, Any] = {"budget": 3, "seed": 1}
    live = model.vote("What is 2 and 14?", strategy="grace-vote", **asked)
    assert live == model.vote("What is 2 and 14?", strategy=fitted, **asked)
    assert live == model.vote("What is 2 and 14?", **asked)
    own = model.vote("What is 2 and 14?", strategy="grace-vote", threshold=0.9, **asked)
    assert own.threshold == 0.9


def test_gains_are_differences_to_sc_over_the_same_questions(scaled: Path):
    for budget, row in rows_of(scaled, "grace-es").items():
        base, own = rows_of(scaled, "sc")[budget], rows_of(scaled, "sc@grace")[budget]
        assert row["gain"] == pytest.approx(row["accuracy"] - base["accuracy"])
        assert row["gain_own"] == pytest.approx(row["accuracy"] - own["accuracy"])
        assert row["gain_interval"][0] <= row["gain"] <= row["gain_interval"][1]
    assert all(row["gain_own"] is None for row in rows_of(scaled, "esc").values())
    one = {name: rows_of(scaled, name)[1]["accuracy"] for name in ("sc@grace", "grace-es")}
    assert len(set(one.values())) == 1  # one sample is one sample, however it votes


def test_tables_of_a_pool_decide_as_its_stored_samples_one_by_one(scaled: Path):
    split = RunDir(scaled).split("test").tuned.pool(6, 0.8)
    pool = pool_of(scaled, "tuned", "grace")
    responses = {response.id: response for response in split.responses.read()}
    grades = {grade.id: grade for grade in split.grades.read()}
    for at, question in enumerate(split.questions.read()):
        ids = [f"{question.id}#{number}" for number in range(6)]
        votes = [Vote(grades[i].answer, responses[i].confidence) for i in ids]
        stored = pool.confidence("grace")[at]
        assert [None if np.isnan(c) else c for c in stored] == [vote.confidence for vote in votes]
        answers = [vote.answer for vote in votes]
        seen = [-1 if answer is None else answers.index(answer) for answer in answers]
        assert pool.answer_QS[at].tolist() == seen
        table = VoteTable(pool.answer_QS[[at]], stored[None])
        for name in ("sc", "esc", "grace-sc", "grace-es,threshold=0.001"):
            (found,) = outcomes(load(name), table, [6])
            decision = decide(load(name), votes, 6)
            chosen = None if found.chosen_R[0] < 0 else answers[found.chosen_R[0]]
            assert (decision.answer, decision.samples) == (chosen, found.used_R[0])


def test_pools_say_how_good_single_samples_and_their_confidences_are(scaled: Path):
    base, tuned = read_json(scaled / "scaling.json")["pools"]
    assert (base["answers"], tuned["answers"]) == ("base", "grace")
    pool = pool_of(scaled, "tuned", "grace")
    assert tuned["accuracy"] == pytest.approx(pool.correct_QS.mean())
    (grace_,) = tuned["confidences"]
    assert grace_["estimator"] == "grace"
    assert grace_["n"] == (~np.isnan(pool.confidence("grace"))).sum()
    assert {"ece", "brier", "auroc", "wqd"} <= grace_.keys()
    assert [row["estimator"] for row in base["confidences"]] == ["likelihood"]


def test_what_is_kept_for_reports_is_what_was_replayed(scaled: Path):
    context = open_run(scaled)
    kept = read_replay(context)
    assert kept is not None and kept.questions[0] in {q.id for q in questions_of(scaled)}
    pool = pool_of(scaled, "tuned", "grace")
    expected = replay(pool, ("grace-es",), budgets=(1, 2, 4, 6), orders=4, seed=0)
    (curve,) = (curve for curve in kept.curves if curve.name == "grace-es")
    again = expected.curves["grace-es"]
    assert (curve.estimator, curve.threshold, curve.budgets) == ("grace", 0.8, (1, 2, 4, 6))
    for name in ("value_MBQ", "used_BV"):
        assert getattr(curve, name) == pytest.approx(getattr(again, name), abs=1e-6)
    wins = kept.wins["grace", "grace"]
    assert wins.wins_Q.tolist() == pair_wins(pool, "grace").wins_Q.tolist()
    assert set(kept.wins) == {("base", "likelihood"), ("grace", "grace")}


def questions_of(path: Path) -> Any:
    return RunDir(path).split("test").questions.read()


def test_a_replay_of_another_version_is_refused_with_what_to_do(scaled: Path, tmp_path: Path):
    path = shutil.copytree(scaled, tmp_path / "run")
    (path / "scaling.safetensors").unlink()
    with pytest.raises(RunError, match=r"grace scale .* --samples 6"):
        read_replay(open_run(path))


def test_a_kill_while_results_are_written_leaves_none_that_do_not_belong_together(
    scaled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = shutil.copytree(scaled, tmp_path / "run")
    monkeypatch.setattr(replays, "write_json", None)  # called after the first of two files
    with pytest.raises(TypeError):
        scale_runs(path, CHOSEN._replace(orders=2))
    assert read_replay(open_run(path)) is None and not RunDir(path).done("scale")


def test_votes_take_the_name_that_the_report_gets_later(scaled: Path, tmp_path: Path):
    path = shutil.copytree(scaled, tmp_path / "run")
    settings = load_run_settings(path)
    renamed = dataclasses.replace(settings.report, name="mine-x")
    before = read_json(scaled / "report.json")
    after = run(path, dataclasses.replace(settings, report=renamed), redo="report")
    parts = ("scaling", "scaling_joint", "equal_accuracy", "pools", "discrimination")
    old = json.dumps([before[part] for part in parts])
    new = json.dumps([after[part] for part in parts])
    assert "mine-x-sc" in new and "sc@mine-x" in new and "grace" in old
    assert new == old.replace("grace", "mine-x")


def test_the_report_is_made_again_with_the_rows_and_stays_finished(scaled: Path):
    report = read_json(scaled / "report.json")
    assert to_json(from_json(Report, report)) == report
    assert {row["strategy"] for row in report["scaling"]} >= {"sc", "sc@grace", "grace-es"}
    assert "What more samples buy" in (scaled / "report.html").read_text("utf-8")
    before = (scaled / "report.json").read_bytes()
    run(scaled, load_run_settings(scaled))
    assert (scaled / "report.json").read_bytes() == before


def test_scaling_again_samples_nothing_and_changes_nothing(
    scaled: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(TransformersEngine, "load", refuse)
    before = (scaled / "scaling.json").read_bytes()
    scale_runs(scaled, CHOSEN)
    assert (scaled / "scaling.json").read_bytes() == before


def test_grades_that_were_torn_are_made_again_without_sampling(
    scaled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = shutil.copytree(scaled, tmp_path / "run")
    grades = path / "test/tuned/pool-6-t0.8/grades.jsonl"
    whole = grades.read_bytes()
    monkeypatch.setattr(TransformersEngine, "load", None)
    grades.write_bytes(whole[:-5])
    scale_runs(path, CHOSEN)
    assert grades.read_bytes() == whole


def test_training_again_forgets_what_was_scaled_with_the_old_model(scaled: Path, tmp_path: Path):
    path = shutil.copytree(scaled, tmp_path / "run")
    (path / "threshold.json").write_text("{}")
    assert (path / "vote.json").exists()
    settings = load_run_settings(path)
    run(path, settings, redo="fit")
    assert not (path / "threshold.json").exists() and not (path / "vote.json").exists()
    assert not list(path.glob("scaling.*")) and not (path / "stages/scale.json").exists()
    assert not (path / "test/tuned/pool-6-t0.8").exists()
    assert (path / "test/pool-6-t0.8/grades.jsonl").exists()
    assert not (path / RATED[0]).exists()
    assert read_json(path / "report.json")["scaling"] == []


def test_a_strategy_that_is_named_twice_is_replayed_once(scaled: Path, tmp_path: Path):
    path = shutil.copytree(scaled, tmp_path / "run")
    again = ("es", "SC", "grace-es,threshold=0.8", "grace-es,threshold=0.7")
    scale_runs(path, CHOSEN._replace(strategies=again))
    names = {row["strategy"] for row in read_json(path / "scaling.json")["rows"]}
    before = {row["strategy"] for row in read_json(scaled / "scaling.json")["rows"]}
    assert names == before | {"grace-es,threshold=0.7"}


def test_what_cannot_be_scaled_is_refused_before_anything_is_sampled(
    finished: Path, tmp_path: Path
):
    for chosen, message in (
        (ScaleSettings(estimators=("p_tru",)), "did you mean 'p_true'"),
        (ScaleSettings(strategies=("verbal-es",)), "add --estimators verbal"),
        (ScaleSettings(strategies=("grace-es,threshold",)), "write KEY=VALUE"),
        (ScaleSettings(estimators=("consistency+platt",)), "consistency.platt compares a response"),
    ):
        with pytest.raises(ConfigError, match=message):
            scale_runs(finished / "run", chosen)
    with pytest.raises(RunError, match="is not a run, and there is none in it"):
        scale_runs(tmp_path, CHOSEN)
    path = shutil.copytree(finished / "run", tmp_path / "run")
    (path / "stages/report.json").unlink()
    with pytest.raises(RunError, match="not finished"):
        scale_runs(path, CHOSEN)
    assert not list((finished / "run" / "test").glob("pool-*"))


# Kills


def scale_until(units: int, path: Path) -> None:
    """Scale a run and kill it -9 before it appends its `units`-th unit of rows to a table."""
    left = units

    def hook(event: str, details: tuple[Any, ...]) -> None:
        nonlocal left
        if event == "open" and "a" in str(details[1]) and "pool-" in str(details[0]):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    pools.UNIT = 3 * CHOSEN.samples
    scale_runs(path, CHOSEN)


@pytest.fixture
def in_units(finished: Path, tmp_path: Path) -> Any:
    """Copies of the finished run that answer one question at a time."""

    def copy(name: str) -> Path:
        path = shutil.copytree(finished / "run", tmp_path / name / "run")
        config = read_json(path / "config.json")
        config["settings"]["sample"]["batch_size"] = 3  # 12 rows a unit
        (path / "config.json").write_text(json.dumps(config))
        return path

    return copy


def test_a_scaling_that_was_killed_resumes_to_the_same_bytes(in_units: Any):
    whole = in_units("whole")
    assert trials.finish(scale_until, 0, whole).code == 0
    broken = in_units("broken")
    kills = [trials.finish(scale_until, units, broken).code for units in (2, 3)]
    assert kills == [-9] * 2
    torn = broken / RATED[0]
    if torn.exists():
        torn.write_bytes(torn.read_bytes()[:-5])
    ended = trials.finish(scale_until, 0, broken)
    assert ended.code == 0, ended.said
    for name in (*POOLED, *RATED, "scaling.json", "scaling.safetensors"):
        assert (whole / name).read_bytes() == (broken / name).read_bytes(), name
