"""GrACE-vote: its posterior by hand, when it stops, and what it takes over from a fit."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace.errors import ConfigError, RunError
from grace.records import Vote
from grace.strategies import FittedVote, decide, fitted_vote, load
from grace.strategies.tally import VoteTable
from grace.strategies.vote import FREE, posterior, tallies

FIT = FittedVote(0.7, 0.1, (0.5, 0.2, 0.4, -0.3, 0.1, -0.6))
confidences = st.none() | st.floats(0, 1)
votes = st.lists(st.builds(Vote, st.sampled_from(["A", "B", None]), confidences), min_size=1)


def cast(answers: str, *values: float | None) -> list[Vote]:
    return [
        Vote(None if letter == "-" else letter, value)
        for letter, value in zip(answers, values, strict=True)
    ]


@pytest.mark.parametrize(
    ("weights", "answers", "values", "answer", "right"),
    [
        (FREE, "A", (0.7,), "A", 0.7),
        (FREE, "AA", (0.75, 0.75), "A", 1 / (1 + 3 ** -math.sqrt(2))),
        (FREE, "AB", (0.75, 0.5), "A", 3 / (3 + 1 + 1)),
        (FREE, "AB", (0.75, None), "A", 3 / (3 + 1 + 1)),
        (FREE, "ABB", (0.9, 0.25, 0.25), "A", 9 / (9 + 1 + 3 ** -math.sqrt(2))),
        (FREE, "A", (1.0,), "A", 0.999),
        (FREE, "A-", (0.75, 0.9), "A", 0.75),
        ((0, 1, 0, 0, 0, 0), "ABA", (0.2, 0.9, 0.2), "A", math.e**2 / (math.e**2 + math.e + 1)),
        ((0, 0, 1, 0, 0, 0), "ABA", (0.2, 0.75, 0.5), "B", 3 / (3 + 1 + 1)),
        ((0, 0, 0, 1, 0, 1), "AAB", (0.2, 0.5, 0.5), "A", 2 / (2 + 1 + 3)),
        ((0, 0, 0, 0, 1, 0), "AA", (0.2, 0.5), "A", 1 / (1 + math.e)),
    ],
)
def test_the_probability_of_the_leading_answer(weights, answers, values, answer, right):
    decision = decide(FittedVote(9, 0, weights), cast(answers, *values), 9)
    assert decision.answer == answer
    assert decision.confidence == pytest.approx(right, abs=1e-9)


def test_without_an_answer_or_a_confidence_there_is_none():
    assert decide(FIT, cast("--", 0.9, None), 9).confidence is None
    unrated = decide(FIT, cast("AAB", None, None, None), 9)
    assert (unrated.answer, unrated.confidence) == ("A", None)


def test_each_doubling_of_the_samples_lowers_the_threshold():
    def used(threshold: float, fall: float) -> int:
        return decide(FittedVote(threshold, fall), cast("ABCDEFGH", *[0.75] * 8), 8).samples

    # P is 3/4, 3/7, 3/10, 3/13, ... of k answers with one vote each
    assert [used(least, 0) for least in (0.74, 0.76)] == [1, 8]
    assert used(0.95, 0.2) == 8
    assert [used(0.9, fall) for fall in (0.3, 0.4)] == [6, 3]
    assert used(0.72, 0.3) == 1


@given(votes, st.randoms(use_true_random=False))
def test_the_probability_does_not_depend_on_the_order(cast, dice):
    again = dice.sample(cast, len(cast))
    both = [FIT.confidence(VoteTable.of(each))[0] for each in (cast, again)]
    assert both[0] == pytest.approx(both[1], rel=1e-12)


@given(votes)
def test_the_answers_and_another_one_share_a_probability_of_one(cast):
    for tally in tallies(VoteTable.of(cast)):
        p_RA = posterior(FIT.weights, tally.features(), tally.given())
        assert p_RA.sum() == pytest.approx(1) and p_RA[0, -1] > 0
        assert (p_RA[~tally.given()] == 0).all()


def test_a_vote_takes_over_a_fit_but_not_a_threshold_of_its_own():
    assert FittedVote().learnt(None) == FittedVote()
    assert FittedVote().learnt(FIT) == FIT
    assert FittedVote(0.9, 0).learnt(FIT) == FittedVote(0.9, 0, FIT.weights)
    with pytest.raises(ConfigError, match="has 6 weights, not 1; fit it again"):
        FittedVote(weights=(1.0,))
    with pytest.raises(ConfigError, match="weights"):
        load("grace-vote,weights=1")


@pytest.mark.parametrize("text", ["{}", "[]", '{"threshold": 1, "fall": 0, "weights": [1, 2]}'])
def test_a_stored_fit_is_read_and_a_torn_one_is_refused(tmp_path: Path, text: str):
    assert fitted_vote(tmp_path) is None
    stored = {"threshold": 0.7, "fall": 0.1, "weights": FIT.weights, "questions": 300}
    (tmp_path / "vote.json").write_text(json.dumps(stored))
    assert fitted_vote(tmp_path) == FIT
    (tmp_path / "vote.json").write_text(text)
    with pytest.raises(RunError, match=r"vote\.json is not a fitted vote .*grace scale"):
        fitted_vote(tmp_path)


def test_a_table_of_many_rows_decides_as_one_row_does():
    rng = np.random.default_rng(0)
    answer_RT = rng.integers(-1, 4, size=(60, 9))
    first_RT = np.array([[list(row).index(a) if a >= 0 else -1 for a in row] for row in answer_RT])
    table = VoteTable(first_RT, rng.uniform(size=(60, 9)))
    assert (FIT.stops(table) <= 9).mean() not in (0, 1)
    for row in range(60):
        one = VoteTable(*(each[row : row + 1] for each in table))
        assert FIT.stops(one)[0] == FIT.stops(table)[row]
        assert FIT.chooses(one)[0] == FIT.chooses(table)[row]
        assert FIT.confidence(one)[0] == FIT.confidence(table)[row]
