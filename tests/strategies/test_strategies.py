"""Each strategy against numbers by hand, and the properties that hold for all votes."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace.errors import UserInputError
from grace.records import Vote
from grace.strategies import (
    AdaptiveConsistency,
    BestOfN,
    EarlyStop,
    Majority,
    SoftmaxWeighted,
    Weighted,
    WindowConsistency,
    decide,
)
from grace.strategies.rules import lead_probability
from grace.strategies.tally import VoteTable

confidences = st.none() | st.sampled_from([0.0, 0.3, 0.6, 0.9, 1.0]) | st.floats(0, 1)
votes = st.lists(
    st.builds(
        Vote,
        answer=st.sampled_from(["A", "B", "C", None]),
        confidence=confidences,
        tokens=st.integers(0, 9),
    ),
    min_size=1,
    max_size=12,
)


def cast(answers: str, *values: float | None) -> list[Vote]:
    """Return votes for the letters of a text, `-` for none."""
    known = values or [None] * len(answers)
    return [
        Vote(None if letter == "-" else letter, value, 1)
        for letter, value in zip(answers, known, strict=True)
    ]


def used(strategy, answers: str, budget: int = 99) -> int:
    return decide(strategy, cast(answers), budget).samples


def answer(strategy, answers: str, *values: float | None) -> str | None:
    return decide(strategy, cast(answers, *values), 99).answer


def test_weighted_voting_overrules_the_majority():
    assert answer(Majority(), "AAB", 0.2, 0.2, 0.9) == "A"
    assert answer(Weighted(), "AAB", 0.2, 0.2, 0.9) == "B"


def test_a_vote_without_a_confidence_weighs_nothing():
    assert answer(Weighted(), "AAB", None, None, 0.1) == "B"
    table = VoteTable(np.array([[0, 0, 2]]), np.array([[np.nan, np.nan, 0.1]]))
    assert Weighted().chooses(table).tolist() == [2]


def test_early_stop_takes_the_first_sure_answer_and_no_more():
    seen = []

    def stream():
        for vote in (Vote("A", 0.3), Vote("B", 0.8), Vote("A", 0.9)):
            seen.append(vote)
            yield vote

    decision = decide(EarlyStop(0.8), stream(), 8)
    assert (decision.answer, decision.samples, len(seen)) == ("B", 2, 2)
    assert decision.confidence == 0.8
    table = VoteTable(np.array([[0, 1, 0]]), np.array([[0.3, 0.8, 0.9]]))
    assert EarlyStop(0.8).stops(table).tolist() == [2]
    assert EarlyStop(0.8).chooses(table).tolist() == [1]


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


def test_a_tie_goes_to_the_answer_seen_first():
    assert answer(Majority(), "-BAAB") == "B"
    assert answer(Weighted(), "BA", 0.5, 0.5) == "B"
    assert answer(BestOfN(), "BA", 0.5, 0.5) == "B"


def test_a_tie_of_weights_goes_to_the_answer_with_more_votes_before_the_one_seen_first():
    assert answer(Weighted(), "BAA", 0.5, 0.25, 0.25) == "A"
    assert answer(Weighted(), "BAA", None, None, None) == "A"


def test_stated_percentages_tie_where_their_sums_are_equal():
    halves = [percent / 100 for percent in range(1, 51)]
    assert {answer(Weighted(), "ABB", 2 * half, half, half) for half in halves} == {"B"}


def test_sums_of_weights_are_exact():
    # In floating point 0.1 + 0.2 > 0.3: the order of the votes, or rounding, would decide.
    for order in ("BAA", "ABA", "AAB"):
        values = {"A": iter([0.1, 0.2]), "B": iter([0.3])}
        assert answer(Weighted(), order, *(next(values[letter]) for letter in order)) == "A"


def test_the_beta_rule_is_the_mass_of_the_beta_distribution_above_one_half():
    from scipy.special import betainc

    for top in range(12):
        for second in range(top + 1):
            above = 1 - betainc(top + 1, second + 1, 0.5)
            assert lead_probability(top, second) == pytest.approx(above, abs=1e-12)


def test_the_published_asc_needs_four_equal_answers_and_the_ratio_rule_two():
    assert used(AdaptiveConsistency(rule="beta"), "AAAAAAAA") == 4
    assert used(AdaptiveConsistency(rule="beta", threshold=0.875), "AAAAAAAA") == 2
    assert used(AdaptiveConsistency(), "AAAAAAAA") == 2


def test_the_ratio_rule_counts_every_sample():
    assert used(AdaptiveConsistency(threshold=0.7), "ABAAAAAA") == 4  # 3 of 4
    assert used(AdaptiveConsistency(threshold=0.7), "A-AAAAAA") == 4
    assert used(AdaptiveConsistency(threshold=0.1), "AAAAAAAA") == 2  # never before the second
    assert used(AdaptiveConsistency(threshold=0.1), "--AAAAAA") == 3
    assert used(AdaptiveConsistency(threshold=0.75), "ABAAAA") == 4  # "reaches" the threshold


def test_esc_stops_at_the_first_unanimous_window_and_gives_its_answer():
    assert used(WindowConsistency(4), "AAAABBBB") == 4
    assert used(WindowConsistency(4), "ABBBBBBB") == 8  # windows do not overlap
    assert answer(WindowConsistency(2), "ABAACC") == "A"
    assert answer(WindowConsistency(2), "ABABCC") == "C"  # the window's, not the majority's
    assert used(WindowConsistency(2), "--AA") == 4


def test_softmax_voting_lies_between_best_of_n_and_the_majority():
    values = (0.5, 0.5, 0.9)
    assert answer(SoftmaxWeighted(100), "AAB", *values) == "A"
    assert answer(SoftmaxWeighted(0.05), "AAB", *values) == "B"
    # exp(0.5 / T) * 2 = exp(0.9 / T) at T = 0.4 / ln 2 = 0.577
    assert answer(SoftmaxWeighted(0.58), "AAB", *values) == "A"
    assert answer(SoftmaxWeighted(0.57), "AAB", *values) == "B"


def test_best_of_n_takes_the_surest_sample_that_has_an_answer():
    assert answer(BestOfN(), "AAB-", 0.5, 0.6, 0.7, 0.9) == "B"
    assert answer(BestOfN(), "AB", None, 0.0) == "B"
    assert answer(BestOfN(), "-AB", 0.9, None, None) == "A"


@given(votes)
def test_a_threshold_above_one_makes_early_stop_a_weighted_vote(cast):
    assert decide(EarlyStop(1.1), cast, 12).answer == decide(Weighted(), cast, 12).answer
    assert decide(EarlyStop(1.1), cast, 12).samples == len(cast)


@given(votes, st.none() | st.floats(0, 1))
def test_equal_confidences_make_weighted_voting_a_majority(cast, value):
    equal = [Vote(vote.answer, value) for vote in cast]
    assert decide(Weighted(), equal, 12).answer == decide(Majority(), equal, 12).answer
    assert decide(SoftmaxWeighted(), equal, 12).answer == decide(Majority(), equal, 12).answer


@given(votes, st.sampled_from([0.5, 0.8, 0.95, 1.1]))
def test_the_beta_rule_stops_where_the_probability_of_the_leader_is_high_enough(cast, threshold):
    counts = [Counter(v.answer for v in cast[:n] if v.answer) for n in range(1, len(cast) + 1)]
    leads = [[*sorted(count.values(), reverse=True), 0, 0][:2] for count in counts]
    enough = [n for n, lead in enumerate(leads, 1) if lead_probability(*lead) >= threshold]
    strategy = AdaptiveConsistency(rule="beta", threshold=threshold)
    assert decide(strategy, cast, 12).samples == (enough or [len(cast)])[0]


@given(votes, st.randoms(use_true_random=False))
def test_the_order_of_the_votes_matters_for_ties_alone(cast, dice):
    for strategy, weigh in ((Majority(), lambda vote: 1.0), (Weighted(), lambda v: v.confidence)):
        totals: dict[str, tuple[int, int]] = {}
        for vote in cast:
            if vote.answer is not None:
                total, count = totals.get(vote.answer, (0, 0))
                totals[vote.answer] = (total + round((weigh(vote) or 0.0) * 2**40), count + 1)
        best = {a for a, total in totals.items() if total == max(totals.values())} or {None}
        shuffled = dice.sample(cast, len(cast))
        first = next((vote.answer for vote in shuffled if vote.answer in best), None)
        assert decide(strategy, shuffled, 12).answer == first


@given(votes)
def test_a_budget_of_one_is_plain_generation(cast):
    for strategy in (Majority(), AdaptiveConsistency(), WindowConsistency(), Weighted()):
        assert decide(strategy, cast, 1).answer == cast[0].answer
    for strategy in (EarlyStop(), SoftmaxWeighted(), BestOfN()):
        assert decide(strategy, cast, 1).answer == cast[0].answer


@given(votes, st.integers(1, 2))
def test_with_a_budget_of_two_the_agreement_rules_are_plain_voting(cast, budget):
    wanted = decide(Majority(), cast, budget).answer
    for strategy in (AdaptiveConsistency(), AdaptiveConsistency(rule="beta"), WindowConsistency()):
        assert decide(strategy, cast, budget).answer == wanted
