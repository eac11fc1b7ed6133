"""Guarantees of thresholds: exact tests, honest refusals, and how often they are false."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from grace.errors import UserInputError
from grace.thresholds import (
    _walk,
    accepted_counts,
    guarantee,
    lower_bound,
    p_value,
    pick,
    selective,
    starts,
)

DRAWS = 1000
DELTAS = (0.05, 0.1, 0.2)
HUNDREDTHS = tuple(k / 100 for k in range(99, -1, -1))
VALUE_K = np.arange(400) / 400  # the confidences that occur, equally often

LAWS = {
    "calibrated": VALUE_K,
    "overconfident": VALUE_K**1.5,
    "underconfident": VALUE_K**0.5,
    "plateau at 95%": np.where(VALUE_K > 0.5, 0.95, 0.4),
    "only the surest 3%": np.where(VALUE_K > 0.97, 0.99, 0.5),
    "flat just below 90%": np.full(400, 0.9 - 1e-9),
    "flat just below 80%": np.full(400, 0.8 - 1e-9),
    "surest are wrong": np.where(VALUE_K > 0.9, 0.7, np.where(VALUE_K > 0.5, 0.97, 0.5)),
    "up and down": 0.9 + 0.08 * np.sign(np.sin(40 * VALUE_K)),
    "confidence knows nothing": np.full(400, 0.6),
}


@pytest.mark.parametrize("most", [20, 300, 5000])
@pytest.mark.parametrize("share", [0.01, 0.05, 0.5, 0.9, 0.99, 1 - 1e-6])
def test_tails_and_bounds_of_the_binomial_are_those_of_scipy(most, share):
    rng = np.random.default_rng(most)
    n = rng.integers(1, most, 500)
    right = np.concatenate([rng.integers(n[:250] + 1), rng.binomial(n[250:], share)])
    tails = stats.binom.sf(right - 1, n, share)
    assert p_value(right, n, share) == pytest.approx(tails, rel=1e-11, abs=1e-100)
    bounds = np.where(right > 0, stats.beta.ppf(share, np.maximum(right, 1), n - right + 1), 0.0)
    found = [lower_bound(*pair, share) for pair in zip(right.tolist(), n.tolist(), strict=True)]
    assert found == pytest.approx(bounds, rel=1e-10)


def tolerated(delta: float) -> float:
    """Return what a rate of exactly delta stays below in 999 of 1,000 experiments of DRAWS."""
    return float(stats.binom.isf(1e-3, DRAWS, delta)) / DRAWS


def truth(accuracy_K: np.ndarray, grid: tuple[float, ...]) -> np.ndarray:
    """Return the accuracy of the accepted answers under a law, for each threshold."""
    reach_GK = np.array(grid)[:, None] <= VALUE_K
    return (reach_GK @ accuracy_K) / np.maximum(reach_GK.sum(axis=1), 1)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(("n", "target"), [(150, 0.8), (500, 0.9)])
def test_the_guarantee_is_false_in_at_most_delta_of_the_draws(law, n, target):
    rng = np.random.default_rng(n)
    accuracy_K = LAWS[law]
    drawn_DN = rng.integers(len(VALUE_K), size=(DRAWS, n))
    correct_DN = rng.random((DRAWS, n)) < accuracy_K[drawn_DN]
    accepted, right = counts(VALUE_K[drawn_DN], correct_DN)
    too_low_G = truth(accuracy_K, HUNDREDTHS) < target
    for delta in DELTAS:
        picked = pick(accepted, right, n, target, delta)
        broken = ((picked >= 0) & too_low_G[picked]).mean()
        print(f"{law}, n {n}, target {target:.0%}, delta {delta}: broken {broken:.1%}")
        assert broken <= tolerated(delta)


def counts(confidence_DN: np.ndarray, correct_DN: np.ndarray) -> np.ndarray:
    """Return the answers that reach each threshold in every draw, and the right ones: (2, D, G)."""
    pairs = zip(confidence_DN, correct_DN, strict=True)
    return np.stack([accepted_counts(*pair, HUNDREDTHS) for pair in pairs], axis=1)


def test_tests_and_bounds_are_the_exact_binomial_ones():
    for n in (1, 7, 50):
        for right in range(n + 1):
            test = stats.binomtest(right, n, 0.8, alternative="greater")
            assert p_value(np.array(right), np.array(n), 0.8) == pytest.approx(test.pvalue)
            exact = test.proportion_ci(0.9, method="exact").low
            assert lower_bound(right, n, 0.1) == pytest.approx(exact)
    assert lower_bound(0, 0, 0.05) == 0


def test_a_threshold_is_found_where_the_answers_are_right_enough():
    rng = np.random.default_rng(0)
    confidence = rng.random(4000)
    found = selective(confidence, rng.random(4000) < confidence, target=0.8)
    assert 0.55 < found.tau < 0.75  # the truth at tau is (1 + tau) / 2
    assert found.bound >= 0.8
    assert found.coverage == pytest.approx(1 - found.tau, abs=0.03)
    assert found.accepted == (confidence >= found.tau).sum()
    assert f"confidence >= {found.tau:g}: at least 80.0% right with probability 95%" in str(found)


@pytest.mark.parametrize(
    ("target", "share"),
    [(0.8, "80.0%"), (0.9996, "99.96%"), (0.755, "75.5%"), (0.95555, "95.555%")],
)
def test_a_promised_share_is_never_rounded(target: float, share: str):
    assert f"at least {share} right" in str(selective([0.9] * 9000, [True] * 9000, target=target))


@pytest.mark.parametrize(("delta", "sure"), [(0.05, "95%"), (0.025, "97.5%"), (0.001, "99.9%")])
def test_a_promise_is_never_rounded_up(delta: float, sure: str):
    found = selective([0.9] * 100, [True] * 100, target=0.8, delta=delta)
    assert f"right with probability {sure};" in str(found)


def test_where_too_few_have_a_confidence_no_test_is_claimed():
    found = selective([0.9] * 40 + [np.nan] * 160, [True] * 200, target=0.9)
    assert found.tau is None
    assert "with 200 questions: only 40 reach the loosest threshold, 50 must;" in str(found)


def test_too_few_questions_are_said_to_be_too_few():
    found = selective([0.9] * 28, [True] * 28, target=0.9)
    assert found.tau is None
    assert "28 questions: at least 29 would be needed even if all answers were right" in str(found)
    assert selective([0.9] * 29, [True] * 29, target=0.9).tau is not None


def test_answers_that_are_not_right_enough_get_no_threshold():
    found = selective([0.9] * 500, [True, False] * 250, target=0.9)
    assert found.tau is None
    assert "250 of 500 right" in str(found) and "lower the target" in str(found)


def test_accepted_answers_reach_the_threshold_itself():
    accepted, right = accepted_counts([0.8, 0.5, np.nan, 0.79], [1, 1, 1, 0], (0.8, 0.5, 0.0))
    assert accepted.tolist() == [1, 3, 3]
    assert right.tolist() == [1, 2, 2]


def test_the_sequence_ends_at_the_first_failure():
    grid = (0.9, 0.8, 0.7)
    found = guarantee([60, 200, 900], [60, 150, 890], 1000, target=0.9, grid=grid)
    assert found.tau == 0.7  # only the sequence that starts at half of the questions gets there
    found = guarantee([600, 700, 900], [590, 600, 890], 1000, target=0.9, grid=grid)
    assert found.tau == 0.9
    found = guarantee([900, 900, 900], [890, 600, 890], 1000, target=0.9, grid=grid)
    assert found.tau == 0.9


def test_sequences_start_early_and_at_a_quarter_of_the_questions():
    early, late = starts(1000, 0.9, 0.05)
    assert late == 250
    # The fewest answers that pass at 0.025 with 5% errors, half of those that 90% allows:
    assert stats.binom.cdf(early // 20 + 1, early, 0.1) <= 0.025 < stats.binom.cdf(5, 100, 0.1)
    assert 100 < early < 200
    assert starts(10**6, 0.9, 0.05) == [early, 250_000]
    assert starts(1000, 0.999999, 0.05) == [2_995_731]
    assert starts(160, 0.9, 0.05) == [40]  # too few questions for two: one, at full delta
    assert starts(10, 0.9, 0.05) == [29]


def test_the_second_sequence_saves_a_flat_top_that_the_first_loses_by_bad_luck():
    rng = np.random.default_rng(5)
    n, target, delta = 3000, 0.9, 0.05
    drawn_DN = rng.integers(len(VALUE_K), size=(200, n))
    correct_DN = rng.random(drawn_DN.shape) < LAWS["plateau at 95%"][drawn_DN]
    accepted, right = counts(VALUE_K[drawn_DN], correct_DN)
    (early, _), share_G = starts(n, target, delta), accepted.mean(axis=0) / n
    passes = p_value(right, accepted, target) <= delta
    alone = _walk(passes, (accepted < early).sum(axis=1))
    both = pick(accepted, right, n, target, delta)
    coverage = [np.where(at >= 0, share_G[at], 0).mean() for at in (alone, both)]
    print(f"mean coverage with one sequence {coverage[0]:.1%}, with two {coverage[1]:.1%}")
    assert coverage[1] > coverage[0] + 0.1


def test_two_sequences_share_delta():
    accepted, n = np.array([[500]]), 1000
    assert len(starts(n, 0.9, 0.05)) == 2
    tail_K = stats.binom.sf(np.arange(500) - 1, 500, 0.9)  # of at least K right ones
    (rights,) = np.nonzero((tail_K > 0.025) & (tail_K <= 0.05))
    assert len(rights) > 0
    for right in rights:
        assert pick(accepted, [[right]], n, 0.9, 0.05) == -1
    passes = int(rights.max()) + 1
    assert pick(accepted, [[passes]], n, 0.9, 0.05) == 0
    found = guarantee([500], [passes], n, target=0.9, grid=[0.8])
    assert found.bound == pytest.approx(lower_bound(passes, 500, 0.025))
    assert found.bound >= 0.9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target": 1.0}, "target is 1.0"),
        ({"target": 0.9, "delta": 0}, "delta is 0; .*, e.g. 0.05"),
        ({"target": 0.9, "grid": (0.1, 0.2)}, "strict to loose"),
        ({"target": 0.9, "grid": ()}, "grid of 0 thresholds"),
    ],
)
def test_an_impossible_goal_is_refused(arguments, message):
    with pytest.raises(UserInputError, match=message):
        selective([0.5], [True], **arguments)


def test_data_that_do_not_fit_are_refused():
    with pytest.raises(UserInputError, match=r"shape \(2,\) and correct \(1,\)"):
        selective([0.5, 0.6], [True], target=0.9)
    with pytest.raises(UserInputError, match=r"confidence\[1\] is 90.0, expected a probability"):
        selective([0.5, 90], [True, True], target=0.9)
    for wrong in ([1, 2], [1, np.nan]):
        with pytest.raises(UserInputError, match=r"correct\[\d\] is .*, expected true or false"):
            selective([0.5, 0.6], wrong, target=0.9)
