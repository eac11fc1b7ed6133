import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace.errors import UserInputError
from grace.records import Vote
from grace.strategies import EarlyStop, Majority, Weighted, decide

votes = st.lists(
    st.builds(
        Vote,
        answer=st.sampled_from(["A", "B", "C", None]),
        confidence=st.none() | st.floats(0, 1),
        tokens=st.integers(0, 9),
    ),
    min_size=1,
    max_size=12,
)


def test_weighted_voting_overrules_the_majority():
    cast = [Vote("A", 0.2), Vote("A", 0.2), Vote("B", 0.9)]
    assert decide(Majority(), cast, 3).answer == "A"
    assert decide(Weighted(), cast, 3).answer == "B"


def test_early_stop_takes_the_first_sure_answer_and_no_more():
    seen = []

    def stream():
        for vote in (Vote("A", 0.3), Vote("B", 0.8), Vote("A", 0.9)):
            seen.append(vote)
            yield vote

    decision = decide(EarlyStop(0.8), stream(), 8)
    assert (decision.answer, decision.samples, len(seen)) == ("B", 2, 2)
    assert decision.confidence == 0.8


def test_closing_reaches_the_source_of_samples():
    closed = []

    def stream():
        try:
            while True:
                yield Vote("A", 0.9)
        finally:
            closed.append(True)

    decide(EarlyStop(0.5), stream(), 8)
    assert closed == [True]


def test_a_sample_without_an_answer_counts_but_casts_no_vote():
    decision = decide(Majority(), [Vote(None, 0.9, 3), Vote("A", 0.1, 2)], 2)
    assert (decision.answer, decision.samples, decision.tokens) == ("A", 2, 5)


def test_no_answer_at_all_is_none():
    decision = decide(EarlyStop(), [Vote(None, 0.99)], 1)
    assert (decision.answer, decision.confidence) == (None, None)


def test_budget_below_one_is_refused():
    with pytest.raises(UserInputError, match="budget is 0"):
        decide(Majority(), [], 0)


@given(votes)
def test_a_threshold_above_one_makes_early_stop_a_weighted_vote(cast):
    assert decide(EarlyStop(1.1), cast, 12).answer == decide(Weighted(), cast, 12).answer


@given(votes, st.floats(0.01, 1))
def test_equal_confidences_make_weighted_voting_a_majority(cast, value):
    equal = [Vote(vote.answer, value) for vote in cast]
    assert decide(Weighted(), equal, 12).answer == decide(Majority(), equal, 12).answer


@given(votes, st.integers(1, 12))
def test_never_more_samples_than_the_budget(cast, budget):
    assert decide(EarlyStop(0.8), cast, budget).samples <= budget
