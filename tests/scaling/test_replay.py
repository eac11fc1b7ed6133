"""Replaying stored samples in tables gives what `decide` gives vote by vote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from grace.errors import UserInputError
from grace.records import Vote
from grace.scaling import Pool, replay
from grace.scaling.replaying import outcomes
from grace.strategies import POLICIES, Policy, decide, policy
from grace.strategies.tally import VoteTable

BUDGETS = (1, 2, 3, 4, 7, 8, 16)
ESTIMATORS = ("grace", "p_true", "verbal")
NAMES = (
    *POLICIES,
    "esc,window=1",
    "esc,window=3",
    "asc,threshold=0.6",
    "asc,rule=beta,threshold=0.8",
    "grace-es,threshold=1.1",
    "grace-es,threshold=0",
    "grace-cisc,temperature=0.01",
    "grace-vote,threshold=0.6",
    "grace-vote,threshold=0.7,fall=0",
)
coarse = st.sampled_from([0.0, 0.1, 0.2, 0.3, 0.5, 0.8, 0.9, 1.0, np.nan])


@st.composite
def pools(draw, samples: int = 16) -> Pool:
    shape = (draw(st.integers(1, 4)), samples)
    codes = draw(arrays.arrays(np.int64, shape, elements=st.integers(-1, draw(st.integers(0, 5)))))
    values = st.floats(0, 1) if draw(st.booleans()) else coarse
    return Pool(
        codes,
        draw(arrays.arrays(bool, shape)),
        draw(arrays.arrays(np.int64, shape, elements=st.integers(0, 50))),
        {name: draw(arrays.arrays(np.float64, shape, elements=values)) for name in ESTIMATORS},
    )


def cast(answers: Sequence[int], confidences: Sequence[float]) -> list[Vote]:
    return [
        Vote(None if a < 0 else f"answer {a}", None if np.isnan(c) else float(c))
        for a, c in zip(answers, confidences, strict=True)
    ]


def name_of(answers: Sequence[int], position: int) -> str | None:
    return None if position < 0 else f"answer {answers[position]}"


@pytest.mark.parametrize("name", NAMES)
@given(pool=pools())
@settings(max_examples=10, deadline=None)
def test_every_strategy_decides_tables_as_it_decides_votes(name, pool):
    made = policy(name)
    confidence_QS = pool.confidence(made.estimator)
    table = VoteTable(pool.answer_QS, confidence_QS)
    for budget, found in zip(BUDGETS, outcomes(made.strategy, table, BUDGETS), strict=True):
        for q, answers in enumerate(pool.answer_QS):
            decision = decide(made.strategy, cast(answers, confidence_QS[q]), budget)
            assert decision.samples == found.used_R[q]
            assert decision.answer == name_of(answers, found.chosen_R[q])


@given(pool=pools(samples=8), seed=st.integers(0, 9))
@settings(max_examples=5, deadline=None)
def test_a_replay_is_the_mean_of_decisions_over_its_orders(pool, seed):
    scaling = replay(pool, NAMES, budgets=(5, 8), orders=3, seed=seed)
    orders = list(pool.orders(3, seed))
    for name, curve in scaling.curves.items():
        made = policy(name)
        confidence_QS = pool.confidence(made.estimator)
        for b, budget in enumerate(curve.budgets):
            right, samples, tokens = np.zeros((3, pool.num_questions))
            for order in orders:
                for q, places in enumerate(order):
                    answers = pool.answer_QS[q, places]
                    decision = decide(
                        made.strategy, cast(answers, confidence_QS[q, places]), budget
                    )
                    names = [name_of(answers, at) for at in range(len(answers))]
                    if decision.answer is not None:
                        first = places[names.index(decision.answer)]
                        right[q] += pool.correct_QS[q, first] / 3
                    samples[q] += decision.samples / 3
                    tokens[q] += pool.tokens_QS[q, places[: decision.samples]].sum() / 3
            assert curve.value_MBQ[0, b] == pytest.approx(right)
            assert curve.value_MBQ[1, b] == pytest.approx(samples)
            assert curve.value_MBQ[2, b] == pytest.approx(tokens)
            assert curve.used_BV[b] @ np.arange(9) == pytest.approx(samples.mean())


@given(pool=pools(samples=8))
@settings(max_examples=5, deadline=None)
def test_a_budget_of_one_is_plain_generation(pool):
    scaling = replay(pool, NAMES, budgets=(1,), orders=4)
    plain = [pool.correct_QS[np.arange(pool.num_questions), o[:, 0]] for o in pool.orders(4)]
    for curve in scaling.curves.values():
        assert curve.value_MBQ[0, 0] == pytest.approx(np.mean(plain, axis=0))
        assert (curve.value_MBQ[1] == 1).all()


@dataclass(frozen=True)
class LastAnswer:
    """A strategy of one's own."""

    def stops(self, table):
        return np.full(len(table.answer_RT), 3)

    def chooses(self, table):
        answers = ([a for a in row if a >= 0] for row in table.answer_RT.tolist())
        return np.array([row[-1] if row else -1 for row in answers])


def test_a_strategy_of_ones_own_is_replayed():
    pool = Pool([[5, -1, 7, 5], [-1, -1, -1, 3]], [[1, 0, 0, 1], [0, 0, 0, 1]])
    curve = replay(pool, [Policy("last", LastAnswer(), None)], budgets=(1, 4), orders=200)
    curve = curve.curves["last"]
    assert curve.value_MBQ[1].tolist() == [[1, 1], [3, 3]]
    assert curve.value_MBQ[0, 0] == pytest.approx([0.5, 0.25], abs=0.1)


def pool_of(questions: int, samples: int = 8, seed: int = 0) -> Pool:
    """Made-up questions of any difficulty, with confidences that know something."""
    rng = np.random.default_rng(seed)
    ease_Q1 = rng.random((questions, 1))
    correct = rng.random((questions, samples)) < ease_Q1
    answers = np.where(correct, 0, rng.integers(-1, 4, correct.shape))
    correct = answers == 0
    confidence = np.clip(0.5 * ease_Q1 + 0.4 * correct + rng.normal(0, 0.1, correct.shape), 0, 1)
    tokens = rng.integers(5, 50, correct.shape)
    return Pool(answers, correct, tokens, dict.fromkeys(ESTIMATORS, confidence))


def test_the_result_does_not_depend_on_how_rows_are_blocked(monkeypatch):
    pool = pool_of(40)
    whole = replay(pool, budgets=(1, 8), orders=5)
    monkeypatch.setattr("grace.scaling.replaying._ROWS", 7)
    parts = replay(pool, budgets=(1, 8), orders=5)
    for name, curve in whole.curves.items():
        assert np.array_equal(curve.value_MBQ[0], parts.curves[name].value_MBQ[0])
        assert np.array_equal(curve.used_BV, parts.curves[name].used_BV)


def test_estimates_have_intervals_and_gains_are_paired():
    scaling = replay(pool_of(300), ["sc", "grace-sc", "grace-es"], budgets=(1, 8), orders=10)
    assert scaling.difference("sc", "sc", 8) == (0, 0, 0)
    plain, weighted = (scaling.estimate(name, 8) for name in ("sc", "grace-sc"))
    gain = scaling.difference("grace-sc", "sc", 8)
    assert weighted.low < weighted.value < weighted.high
    assert gain.low > 0  # these confidences know what is right
    assert gain.value == pytest.approx(weighted.value - plain.value)
    assert gain.width < np.hypot(plain.width, weighted.width)  # paired
    assert scaling.curves["grace-es"].threshold == 0.8
    assert scaling.estimate("grace-es", 8, "samples").high < 8
    saved = scaling.difference("grace-es", "sc", 8, "samples")
    assert saved.high < 0


def test_the_interval_of_a_mean_over_questions_is_the_textbook_one():
    scaling = replay(pool_of(400), ["sc"], budgets=(8,), orders=5)
    value_Q = scaling.curves["sc"].value_MBQ[0, 0]
    estimate = scaling.estimate("sc", 8)
    error = value_Q.std() / 20
    assert estimate.low == pytest.approx(value_Q.mean() - 1.96 * error, abs=0.3 * error)
    assert estimate.high == pytest.approx(value_Q.mean() + 1.96 * error, abs=0.3 * error)


def test_the_same_seed_gives_the_same_draws():
    pool = pool_of(30)
    first, second = (replay(pool, ["sc"], budgets=(4,), orders=3, seed=1) for _ in range(2))
    assert np.array_equal(first.draws("sc", 4), second.draws("sc", 4))
    assert first.draws("sc", 4)[0] == pytest.approx(first.curves["sc"].value_MBQ[0].mean())


def test_a_missing_answer_of_a_table_has_no_vote():
    pool = Pool.from_answers([[None, np.nan, "x", "x"], [np.nan, 5, np.nan, 5]], np.ones((2, 4)))
    assert pool.answer_QS.tolist() == [[-1, -1, 2, 2], [-1, 1, -1, 1]]
    frame = pandas.DataFrame([["x", pandas.NA], ["y", "y"]], dtype="string")
    confidence = pandas.DataFrame([[0.5, None], [0.25, 1]], dtype="Float64")
    pool = Pool.from_answers(frame, np.ones((2, 2)), confidences={"grace": confidence})
    assert pool.answer_QS.tolist() == [[0, -1], [0, 0]]
    assert np.array_equal(pool.confidences["grace"], [[0.5, np.nan], [0.25, 1]], equal_nan=True)


@pytest.mark.parametrize("answers", [[["x", "y"], ["x"]], {"q1": ["x"], "q2": ["y"]}, ["ab", "cd"]])
def test_answers_that_are_no_table_are_refused(answers: Any):
    with pytest.raises(UserInputError, match="fill the others up with None"):
        Pool.from_answers(answers, np.ones((2, 2)))


def test_questions_can_be_taken_out_of_a_pool():
    pool = pool_of(5)
    part = pool.take([3, 3, 0])
    assert np.array_equal(part.answer_QS, pool.answer_QS[[3, 3, 0]])
    assert np.array_equal(part.confidence("grace"), pool.confidence("grace")[[3, 3, 0]])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"budgets": (1, 9)}, "budgets 1, 9 do not fit: the pool holds 8"),
        ({"budgets": (0,)}, "budgets 0 do not fit"),
        ({"budgets": ()}, "none"),
        ({"orders": 0}, "orders is 0; use a whole number"),
        ({"policies": []}, "no strategy to replay"),
        ({"policies": ["apricot-es"]}, "no confidences of 'apricot' .it has: grace"),
    ],
)
def test_an_impossible_replay_is_refused(arguments, message):
    with pytest.raises(UserInputError, match=message):
        replay(pool_of(3), **({"budgets": (1,)} | arguments))


def test_what_was_not_replayed_is_named_beside_what_was():
    found = replay(pool_of(3), ["sc", "es"], budgets=(1, 2))
    for policy_name, budget in (("es", 2), ("sc", 8)):
        with pytest.raises(UserInputError, match=r"there are sc, grace-es with 1, 2$"):
            found.reach("sc", policy_name, budget)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["A", "B"], [1, 0]), "whole numbers"),
        (([1, 2], [1, 0]), "shape"),
        (([[1, 2]], [[1]]), "correct has shape"),
        (([[1, 2]], [[1, np.nan]]), r"correct\[1\] is nan, expected true or false"),
        (([[1, 2]], [[1, 0.3]]), r"correct\[1\] is 0.3"),
        (([[1, 2]], [[True, None]]), r"correct\[1\] is nan"),
        (([[1, 2]], [[1, 0]], [[1]]), "tokens has shape"),
        (([[1, 2]], [[1, 0]], None, {"grace": [[0.5, 1.5]]}), r"confidence\[1\] is 1.5"),
    ],
)
def test_an_unusable_pool_is_refused(arguments, message):
    with pytest.raises(UserInputError, match=message):
        Pool(*arguments)
