"""`grace threshold`: chosen on validation answers alone, stored, checked on test answers."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import grace
from grace.errors import ConfigError, DataError, RunError, UserInputError
from grace.pipeline.scaling.guarantees import choose_threshold
from grace.pipeline.scaling.pools import read_pool
from grace.records import Threshold
from grace.scaling import accuracy_threshold, fit_weights
from grace.store import RunDir, read_json
from grace.strategies import EarlyStop, FittedVote
from grace.thresholds import selective

EASY = {"target": 0.1, "delta": 0.4}


@pytest.fixture(scope="module")
def answered(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose model answers validation and test questions, all rightly; leave it as it is."""
    path = tmp_path_factory.mktemp("answered") / "run"
    shutil.copytree(finished / "run", path)
    config = read_json(path / "config.json")
    config["settings"]["grade"]["grader"] = "tiny_run:right"
    (path / "config.json").write_text(json.dumps(config))
    choose_threshold(path, **EASY)
    choose_threshold(path, mode="early-stop", budget=3, **EASY)
    (path / "threshold.json").unlink()
    return path


@pytest.fixture
def run(answered: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(answered, tmp_path / "run"))


def values(run: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    tuned = RunDir(run).split(split).tuned
    confidence = [response.confidence for response in tuned.responses.read()]
    return (
        np.array(confidence, dtype=float),
        np.array([grade.correct for grade in tuned.grades.read()]),
    )


def test_single_answers_get_the_threshold_of_selective_answering(run: Path):
    chosen = choose_threshold(run, **EASY)
    expected = selective(*values(run, "validation"), **EASY)
    assert (chosen.tau, chosen.bound, chosen.n) == (expected.tau, expected.bound, 10)
    assert chosen.promise == str(expected)
    assert (chosen.mode, chosen.budget, chosen.temperature) == ("answer", 1, 0.0)
    assert chosen.tau is not None
    confidence_N, correct_N = values(run, "test")
    given_N = confidence_N >= chosen.tau
    test: Any = chosen.test
    assert (test["n"], test["accepted"]) == (10, given_N.sum())
    assert test["right"] == (given_N & correct_N).sum()
    assert RunDir(run).chosen_threshold() == chosen
    assert grace.load(run).promise == chosen


def test_votes_get_the_threshold_of_what_early_stopping_does(run: Path):
    pool = read_pool(RunDir(run).split("validation").tuned.pool(3, 0.8), ["grace"])
    chosen = choose_threshold(run, mode="early-stop", budget=3, **EASY)
    expected = accuracy_threshold(pool, EASY["target"], budget=3, delta=EASY["delta"])
    assert (chosen.tau, chosen.promise) == (expected.tau, str(expected))
    assert (chosen.mode, chosen.budget, chosen.temperature) == ("early-stop", 3, 0.8)
    test: Any = chosen.test
    assert test["n"] == 10 and 0 < test["right"] == test["accepted"]


def test_the_fitted_vote_gets_a_threshold_on_questions_that_it_was_not_fitted_to(run: Path):
    pool = read_pool(RunDir(run).split("validation").tuned.pool(3, 0.8), ["grace"])
    wanted: Any = {"mode": "early-stop", "budget": 3}
    chosen = choose_threshold(run, strategy="grace-vote", **wanted, **EASY)
    assert chosen.weights == fit_weights(pool.take(range(0, 10, 2)))
    expected = accuracy_threshold(
        pool.take(range(1, 10, 2)),
        EASY["target"],
        budget=3,
        delta=EASY["delta"],
        rule=lambda tau: FittedVote(tau, 0.0, chosen.weights),
    )
    assert (chosen.tau, chosen.promise, chosen.n) == (expected.tau, str(expected), 5)
    assert RunDir(run).chosen_threshold() == chosen and chosen.strategy == "grace-vote"
    model, asked = grace.load(run), "What is 3 and 21?"
    plain = model.vote(asked, seed=1, strategy=FittedVote(chosen.tau, 0, chosen.weights), budget=3)
    for strategy in (None, "grace-vote"):
        decision = model.vote(asked, seed=1, strategy=strategy)
        assert (decision.threshold, decision.promise) == (chosen.tau, chosen.promise)
        assert (decision.answer, decision.confidence) == (plain.answer, plain.confidence)
    for other in ({"strategy": "es"}, {"budget": 4}, {"strategy": "grace-vote,fall=0"}):
        assert model.vote(asked, seed=1, **other).promise == ""
    assert choose_threshold(run, **wanted, **EASY).tries == 2


def test_a_vote_is_not_fitted_to_half_of_one_question(run: Path):
    questions = RunDir(run).split("validation").questions
    questions.write([dataclasses.replace(one, group="same") for one in questions.read()])
    with pytest.raises(DataError, match="half of the validation questions, but there is one"):
        choose_threshold(run, mode="early-stop", strategy="grace-vote", **EASY)


def test_a_vote_of_the_loaded_run_uses_it(run: Path):
    chosen = choose_threshold(run, mode="early-stop", budget=3, **EASY)
    decision = grace.load(run).vote("What is 3 and 21?", seed=1)
    plain = grace.load(run).vote(
        "What is 3 and 21?", seed=1, strategy=EarlyStop(chosen.tau or 0), budget=3
    )
    assert (decision.threshold, decision.promise) == (chosen.tau, chosen.promise)
    assert (decision.answer, decision.votes) == (plain.answer, plain.votes)


def test_test_answers_never_move_the_threshold(run: Path):
    before = choose_threshold(run, **EASY)
    grades = run / "test/tuned/grades.jsonl"
    grades.write_text(grades.read_text().replace('"correct": true', '"correct": false'))
    after = choose_threshold(run, **EASY)
    assert (after.tau, after.bound, after.promise) == (before.tau, before.bound, before.promise)
    assert before.test and after.test and after.test["right"] == 0 < before.test["right"]


def test_what_cannot_be_promised_is_said_and_nothing_is_used(run: Path):
    assert choose_threshold(run, **EASY).tau is not None
    chosen = choose_threshold(run, target=0.9)
    assert chosen.tau is None and chosen.test is None
    assert "no threshold can promise" in chosen.promise and "29 would be needed" in chosen.promise
    model = grace.load(run)
    assert model.ask("What is 3?").threshold is None
    assert not model.ask("What is 3?").abstains


def test_the_guarantees_that_were_asked_of_the_same_questions_are_counted(run: Path):
    asked: list[dict[str, Any]] = [EASY, EASY, {"target": 0.9}, EASY | {"delta": 0.3}]
    assert [choose_threshold(run, **wanted).tries for wanted in asked] == [1, 1, 2, 3]


def test_sampled_test_answers_are_not_taken_for_greedy_ones(run: Path):
    """A run that answers tests at a temperature gets greedy answers of its own."""
    config = read_json(run / "config.json")
    config["settings"]["sample"]["test_temperature"] = 0.8
    (run / "config.json").write_text(json.dumps(config))
    greedy = choose_threshold(run, **EASY)
    for split in ("validation", "test"):
        pool = RunDir(run).split(split).tuned.pool(1, 0.0)
        usual = RunDir(run).split(split).tuned
        texts = [[r.text for r in side.responses.read()] for side in (pool, usual)]
        assert texts[0] == texts[1]
    assert greedy.temperature == 0


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"target": 0.9, "mode": "vote"}, "--mode is 'vote'"),
        ({"target": 0.9, "budget": 4}, "--budget 4 needs votes"),
        ({"target": 0.9, "mode": "early-stop", "budget": 0}, "--budget is 0"),
        ({"target": 1.0}, "target accuracy is 1.0"),
        ({"target": 0.9, "delta": 0.0}, "delta is 0.0"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(answered: Path, wanted: Any, message: str):
    with pytest.raises(UserInputError, match=message):
        choose_threshold(answered, **wanted)
    assert not (answered / "threshold.json").exists()


def test_only_a_run_with_a_trained_model_has_a_threshold(finished: Path, tmp_path: Path):
    with pytest.raises(RunError, match="is not a run"):
        choose_threshold(tmp_path, **EASY)
    shutil.copytree(finished / "run", tmp_path / "seeds" / "seed-0")
    with pytest.raises(RunError, match=r"several runs.*seed-0"):
        choose_threshold(tmp_path / "seeds", **EASY)
    (tmp_path / "seeds/seed-0/stages/answer.json").unlink()
    with pytest.raises(RunError, match="no trained model yet"):
        choose_threshold(tmp_path / "seeds/seed-0", **EASY)


def test_a_stored_threshold_says_all_that_it_was_chosen_for(run: Path):
    choose_threshold(run, **EASY)
    assert set(read_json(run / "threshold.json")) == set(Threshold.__dataclass_fields__)
    with pytest.raises(ConfigError):
        choose_threshold(run, mode="never", **EASY)
