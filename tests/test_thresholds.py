"""Guarantees of thresholds: exact tests, honest refusals, and how often they are false."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from grace.errors import UserInputError
from grace.thresholds import (
    Counts,
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


@pytest.mark.parametrize(
    ("most", "share"),
    [(20, 0.05), (20, 0.9), (300, 0.5), (300, 1 - 1e-6), (5000, 0.01), (5000, 0.99)],
)
def test_tails_and_bounds_of_the_binomial_are_those_of_scipy(most, share):
    rng = np.random.default_rng(most)
    n = rng.integers(1, most, 60)
    right = np.concatenate([rng.integers(n[:30] + 1), rng.binomial(n[30:], share)])
    tails = stats.binom.sf(right - 1, n, share)
    assert p_value(right, n, share) == pytest.approx(tails, rel=1e-11, abs=1e-100)
    bounds = np.where(right > 0, stats.beta.ppf(share, np.maximum(right, 1), n - right + 1), 0.0)
    found = [lower_bound(*pair, share) for pair in zip(right.tolist(), n.tolist(), strict=True)]
    assert found == pytest.approx(bounds, rel=1e-10)
    assert lower_bound(0, 0, share) == 0


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
        picked = pick([accepted], [right], [n], target, delta)
        broken = ((picked >= 0) & too_low_G[picked]).mean()
        print(f"{law}, n {n}, target {target:.0%}, delta {delta}: broken {broken:.1%}")
        assert broken <= tolerated(delta)


MIXES = {  # of three sources
    "one just below the target": ("flat just below 80%", "underconfident", "plateau at 95%"),
    "two just below the target": ("flat just below 80%", "flat just below 80%", "underconfident"),
    "unlike": ("overconfident", "calibrated", "underconfident"),
    "one whose surest are wrong": ("surest are wrong", "plateau at 95%", "underconfident"),
}


EVEN, UNEVEN = (300, 300, 300), (1000, 150, 500)


def drawn_mix(mix: str, sizes: tuple[int, ...], draws: int) -> np.ndarray:
    """Return how many answers reach each threshold in draws of three sources: (2, S, D, G)."""
    rng, parts = np.random.default_rng(sizes[0]), []
    for name, n in zip(MIXES[mix], sizes, strict=True):
        drawn_DN = rng.integers(len(VALUE_K), size=(draws, n))
        parts.append(counts(VALUE_K[drawn_DN], rng.random((draws, n)) < LAWS[name][drawn_DN]))
    return np.stack(parts, axis=1)


def test_all_at_delta_find_more_than_the_strictest_threshold_of_each_at_a_share_of_delta():
    sizes = (600, 600, 600)
    accepted_SDG, right_SDG = drawn_mix("unlike", sizes, 400)
    together = pick(accepted_SDG, right_SDG, sizes, 0.8, 0.05)
    parts = zip(accepted_SDG, right_SDG, sizes, strict=True)
    strictest = np.min([pick(*([x] for x in part), 0.8, 0.05 / 3) for part in parts], axis=0)
    found = [(at >= 0).mean() for at in (together, strictest)]
    print(f"found by all at delta in {found[0]:.1%}, by each at delta / 3 in {found[1]:.1%}")
    assert found[0] > found[1] + 0.2


@pytest.mark.parametrize(
    ("mix", "sizes"), [*((mix, EVEN) for mix in MIXES), ("two just below the target", UNEVEN)]
)
def test_the_guarantee_is_false_in_a_source_in_at_most_delta_of_the_draws(mix, sizes):
    target, laws = 0.8, [LAWS[name] for name in MIXES[mix]]
    accepted_SDG, right_SDG = drawn_mix(mix, sizes, DRAWS)
    too_low_G = np.any([truth(law, HUNDREDTHS) < target for law in laws], axis=0)
    for delta in DELTAS:
        picked = pick(accepted_SDG, right_SDG, sizes, target, delta)
        mixed = pick([accepted_SDG.sum(0)], [right_SDG.sum(0)], [sum(sizes)], target, delta)
        broken, alone = (((at >= 0) & too_low_G[at]).mean() for at in (picked, mixed))
        found = (picked >= 0).mean()
        print(f"{mix}, n {sizes}, delta {delta}: broken {broken:.1%}, found {found:.1%}", end="")
        print(f"; broken by the threshold of the mixture {alone:.1%}")
        assert broken <= tolerated(delta)
        assert alone > broken


def counts(confidence_DN: np.ndarray, correct_DN: np.ndarray) -> np.ndarray:
    """Return the answers that reach each threshold in every draw, and the right ones: (2, D, G)."""
    draws, cells = len(confidence_DN), len(HUNDREDTHS)
    first_DN = np.searchsorted(-np.array(HUNDREDTHS), -confidence_DN)  # threshold that it reaches
    first_DN += cells * np.arange(draws)[:, None]
    found = np.stack(
        [
            np.bincount(first_DN.ravel(), each_DN.ravel(), draws * cells)
            .reshape(draws, cells)
            .cumsum(1)
            for each_DN in (np.ones(correct_DN.shape), correct_DN)
        ]
    ).astype(int)
    assert (found[:, 0] == accepted_counts(confidence_DN[0], correct_DN[0], HUNDREDTHS)).all()
    return found


def test_a_threshold_is_found_where_the_answers_are_right_enough():
    rng = np.random.default_rng(0)
    confidence = rng.random(4000)
    found = selective(confidence, rng.random(4000) < confidence, target=0.8)
    assert 0.55 < found.tau < 0.75  # the truth at tau is (1 + tau) / 2
    assert found.bound >= 0.8
    assert found.coverage == pytest.approx(1 - found.tau, abs=0.03)
    assert found.accepted == (confidence >= found.tau).sum()
    assert f"confidence >= {found.tau:g}: at least 80.0% right with probability 95%" in str(found)


def two_sources(seed: int = 0) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Answers of an easy and a hard source, whose confidences are alike."""
    rng = np.random.default_rng(seed)
    names = ["easy"] * 900 + ["hard"] * 600
    confidence_N = rng.random(1500)
    share_N = np.where(np.array(names) == "easy", confidence_N**0.2, confidence_N**1.5)
    return confidence_N, rng.random(1500) < share_N, names


def test_the_threshold_of_a_mixture_breaks_the_guarantee_of_a_source():
    confidence_N, correct_N, names = two_sources()
    further_N, right_N, kinds = two_sources(seed=1)
    hard_N = np.array(kinds) == "hard"
    mixed = selective(confidence_N, correct_N, target=0.8)
    found = selective(confidence_N, correct_N, target=0.8, sources=names)
    shares = [right_N[hard_N & (further_N >= one.tau)].mean() for one in (mixed, found)]
    assert shares[0] < 0.7 and shares[1] > 0.8
    assert found.tau > mixed.tau + 0.2
    easy, hard = found.sources
    assert (easy.source, easy.n, hard.source, hard.n) == ("easy", 900, "hard", 600)
    assert found.bound == hard.bound == lower_bound(hard.right, hard.accepted, 0.025) >= 0.8
    assert easy.accepted + hard.accepted == found.accepted == (confidence_N >= found.tau).sum()
    assert easy.right + hard.right == found.right
    assert (mixed.sources, found.n) == ((), 1500)
    assert "at least 80.0% right in each of easy, hard with probability 95%" in str(found)
    assert f"1500 questions, lowest bound {hard.bound:.1%})" in str(found)


def test_one_source_is_all_there_is():
    confidence_N, correct_N, _ = two_sources()
    plain = selective(confidence_N, correct_N, target=0.8)
    named = selective(confidence_N, correct_N, target=0.8, sources=["a"] * 1500)
    assert (named.tau, named.bound, named.right) == (plain.tau, plain.bound, plain.right)


def test_of_a_source_with_too_few_questions_nothing_is_promised():
    confidence_N, correct_N, names = two_sources()
    few = [0.99] * 13, [False] * 13, [""] * 13  # 14 are the fewest, for a target of 80%
    found = selective(
        [*confidence_N, *few[0]], [*correct_N, *few[1]], target=0.8, sources=[*names, *few[2]]
    )
    plain = selective(confidence_N, correct_N, target=0.8, sources=names)
    assert (found.tau, found.n, found.bound) == (plain.tau, plain.n, plain.bound)
    easy, hard, others = found.sources
    assert (easy, hard) == plain.sources
    assert (others.source, others.n, others.accepted, others.covered) == ("others", 13, 13, False)
    assert str(found).startswith(str(plain))
    assert str(found).endswith("nothing is promised of others (13): fewer than 14 questions")
    none = selective(few[0], few[1], target=0.8, sources=["a"] * 6 + ["b"] * 7)
    assert none.tau is None and not any(one.covered for one in none.sources)
    assert "in every source with probability 95% with 7 questions of b: at least 14" in str(none)


def test_without_a_threshold_for_all_the_source_is_named_that_has_none():
    confidence, correct = [0.9] * 400, [True] * 300 + [True, False] * 50
    found = selective(confidence, correct, target=0.8, sources=["good"] * 300 + ["bad"] * 100)
    assert found.tau is None
    assert "with 100 questions of bad: the strictest tested has 50 of 100 right" in str(found)
    silent = selective(
        [0.9] * 300 + [np.nan] * 100, [True] * 400, target=0.8, sources=["a"] * 300 + ["b"] * 100
    )
    assert silent.tau is None
    assert "100 questions of b: only 0 reach the loosest threshold, 25 must" in str(silent)
    with pytest.raises(UserInputError, match="2 sources of 400 answers"):
        selective(confidence, correct, target=0.8, sources=["a", "b"])


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


def whole(accepted: list[int], right: list[int], n: int) -> dict[str, Counts]:
    """Return counts where no sources are told."""
    return {"": Counts(np.array(accepted), np.array(right), n)}


def test_the_sequence_ends_at_the_first_failure():
    grid = (0.9, 0.8, 0.7)
    found = guarantee(whole([60, 200, 900], [60, 150, 890], 1000), target=0.9, grid=grid)
    assert found.tau == 0.7  # only the sequence that starts at half of the questions gets there
    found = guarantee(whole([600, 700, 900], [590, 600, 890], 1000), target=0.9, grid=grid)
    assert found.tau == 0.9
    found = guarantee(whole([900, 900, 900], [890, 600, 890], 1000), target=0.9, grid=grid)
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
    both = pick([accepted], [right], [n], target, delta)
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
        assert pick([accepted], [[[right]]], [n], 0.9, 0.05) == -1
    passes = int(rights.max()) + 1
    assert pick([accepted], [[[passes]]], [n], 0.9, 0.05) == 0
    found = guarantee(whole([500], [passes], n), target=0.9, grid=[0.8])
    assert found.bound == pytest.approx(lower_bound(passes, 500, 0.025))
    assert found.bound >= 0.9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target": 1.0}, "target is 1.0"),
        ({"target": 0.9, "delta": 0}, "delta is 0; .*, e.g. 0.05"),
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
