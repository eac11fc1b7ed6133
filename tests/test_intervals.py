"""Intervals and marks are as often wrong as they say: simulated worlds with a known truth.

The worlds of single answers: confidences that are spread out, middling or nearly all alike, with
grades drawn so that the true ECE (10 bins) is what the world says; alone, or four answers to each
question whose grades depend on each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import NormalDist

import numpy as np
import pytest

from grace.metrics import (
    Resamples,
    brier,
    calibration,
    difference,
    estimate,
    evaluate,
    over_seeds,
    percentiles,
)

SHAPES = {
    "sharp": lambda rng, n: rng.beta(0.6, 0.4, n),
    "middle": lambda rng, n: rng.beta(2, 1.5, n),
    "alike": lambda rng, n: rng.beta(30, 20, n),
}
NORMAL = np.vectorize(NormalDist().cdf, otypes=[float])


def true_rate(confidence, off):
    """How often an answer is right: less than its confidence by a constant."""
    return np.clip(confidence - off, 0, 1)


def off_for(shape, target):
    """Return the constant that makes the true ECE of a world what it should be."""
    confidence = SHAPES[shape](np.random.default_rng(9), 200_000)
    bins = np.minimum((confidence * 10).astype(int), 9)
    low, high = 0.0, 1.0
    for _ in range(30):
        off = (low + high) / 2
        gaps = np.bincount(bins, true_rate(confidence, off) - confidence, 10)
        low, high = (off, high) if np.abs(gaps).sum() < target * len(bins) else (low, off)
    return 0.0 if target == 0 else off


def answers(rng, shape, off, n, per=1):
    """Return confidences, grades and question ids."""
    confidence = SHAPES[shape](rng, n)
    if per == 1:
        return confidence, rng.random(n) < true_rate(confidence, off), range(n)
    ease = np.repeat(rng.normal(size=n // per), per)
    rank = (0.8 * ease + 0.6 * rng.normal(size=n)).argsort().argsort()
    confidence = np.sort(confidence)[rank]
    luck = NORMAL(np.sqrt(0.5) * (np.repeat(rng.normal(size=n // per), per) + rng.normal(size=n)))
    return confidence, luck < true_rate(confidence, off), np.repeat(np.arange(n // per), per)


def share(hits):
    return float(np.mean(list(hits)))


# --- the true ECE


@pytest.mark.slow
@pytest.mark.parametrize("per", [1, 4])
@pytest.mark.parametrize("true", [0, 2, 5, 10])
@pytest.mark.parametrize("n", [200, 1000])
def test_the_true_ece_is_in_its_interval_as_often_as_it_says(n, true, per):
    if (n, per, true) == (200, 4, 10):
        pytest.skip("fifty questions")
    resamples = Resamples(range(n // per), resamples=300)

    def holds(shape) -> Iterator[bool]:
        off = off_for(shape, true / 100)
        for study in range(300):
            confidence, right, ids = answers(np.random.default_rng([study, n]), shape, off, n, per)
            found = estimate([resamples.evaluate(confidence, right, list(ids), "ece")["ece"]])
            yield found.low <= true / 100 + 1e-4 and true / 100 - 1e-4 <= found.high

    covered = {shape: share(holds(shape)) for shape in SHAPES}
    print(n, true, per, covered)
    assert 0.92 <= np.mean([*covered.values()]) <= 0.98, covered
    assert min(covered.values()) >= 0.90, covered


@pytest.mark.slow
@pytest.mark.parametrize("n", [200, 1000])
def test_the_interval_of_every_other_metric_covers_its_truth(n):
    names = ("brier", "auroc", "accuracy", "aurc")
    resamples = Resamples(range(n), resamples=400)
    for shape in ("sharp", "middle"):
        held = {name: [] for name in names}
        confidence, right, ids = answers(np.random.default_rng(7), shape, 0.0, 200_000)
        truth = evaluate(confidence, right, names)
        for study in range(300):
            confidence, right, ids = answers(np.random.default_rng(study), shape, 0.0, n)
            for name, draws in resamples.evaluate(confidence, right, list(ids), names).items():
                found = estimate([draws])
                held[name].append(found.low <= truth[name] <= found.high)
        covered = {name: share(hits) for name, hits in held.items()}
        print(n, shape, covered)
        assert all(0.92 <= part <= 0.98 for part in covered.values()), (shape, covered)


@pytest.mark.slow
@pytest.mark.parametrize("n", [200, 1000])
def test_of_two_confidences_of_equal_truth_one_is_called_better_in_at_most_three_percent(n):
    """The sharper of two calibrated ones is not worse, nor is either of two equally noisy ones."""
    ids = list(range(n))
    clear = {name: [] for name in ("sharp against a constant", "ece", "brier", "auroc")}
    for study in range(1000):
        rng = np.random.default_rng(study)
        resamples = Resamples(ids, resamples=400, seed=study)  # its own: their error averages out
        truth = rng.beta(2, 1.5, n)
        right = rng.random(n) < truth
        constant = np.full(n, 2 / 3.5)
        sides = [truth, constant]
        odds = np.log(truth / (1 - truth))
        sides += [1 / (1 + np.exp(-odds - rng.normal(0, 0.7, n))) for _ in range(2)]
        names = ("ece", "brier", "auroc")
        sharp, flat = (resamples.evaluate(side, right, ids, "ece") for side in sides[:2])
        one, other = (resamples.evaluate(side, right, ids, names) for side in sides[2:])
        clear["sharp against a constant"].append(difference([sharp["ece"]], [flat["ece"]]).clear)
        for name in ("ece", "brier", "auroc"):
            clear[name].append(difference([one[name]], [other[name]]).clear)
    wrong = {name: max(share(np.array(c) == s) for s in (-1, 1)) for name, c in clear.items()}
    either = {name: share(np.array(c) != 0) / 2 for name, c in clear.items()}
    print(n, wrong, either)
    assert wrong["sharp against a constant"] <= 0.03, wrong
    assert max(either.values()) <= 0.03, either


def test_a_large_difference_in_ece_is_still_clear():
    rng = np.random.default_rng(0)
    truth = rng.beta(2, 1.5, 1000)
    right, ids = rng.random(1000) < truth, list(range(1000))
    resamples = Resamples(ids, resamples=300)
    good, bad = (resamples.evaluate(c, right, ids, "ece")["ece"] for c in (truth, truth**0.5))
    assert difference([bad], [good]).clear == 1 and difference([good], [bad]).clear == -1
    assert difference([good], [good]) == (0, 0, 0)


# --- the test of calibration


@pytest.mark.slow
@pytest.mark.parametrize(("n", "per"), [(200, 1), (1000, 1), (1000, 4)])
def test_a_calibrated_confidence_is_refused_in_five_percent(n, per):
    for shape in SHAPES:
        p = []
        for study in range(600):
            made = answers(np.random.default_rng(study), shape, 0.0, n, per)
            p.append(calibration(made[0], made[1], list(made[2])).p_calibrated)
        print(n, per, shape, share(np.array(p) <= 0.05))
        assert abs(share(np.array(p) <= 0.05) - 0.05) <= 0.027  # three errors of 600 studies


def test_a_confidence_that_is_off_is_refused_and_described():
    rng = np.random.default_rng(0)
    odds = rng.normal(0.5, 1.5, 3000)
    right = rng.random(3000) < 1 / (1 + np.exp(-odds))
    off = 1 / (1 + np.exp(-(2 * odds + 1)))  # odds = (log-odds of c) / 2 - 1 / 2
    found = calibration(off, right)
    assert found.p_calibrated < 0.001
    assert (found.slope, found.offset) == pytest.approx((0.5, -0.5), abs=0.06)
    right_odds = calibration(1 / (1 + np.exp(-odds)), right)
    assert (right_odds.slope, right_odds.offset) == pytest.approx((1, 0), abs=0.1)
    assert right_odds.p_calibrated > 0.05 and right_odds.brier_calibration < 0.001
    assert found.brier_refinement == pytest.approx(right_odds.brier_refinement, abs=0.006)
    assert found.brier_calibration + found.brier_refinement == pytest.approx(brier(off, right))


def test_what_chance_adds_to_the_squared_gaps_is_taken_off():
    parts = []
    for study in range(40):
        confidence, right, _ = answers(np.random.default_rng(study), "middle", 0.0, 200)
        parts.append(calibration(confidence, right).brier_calibration)
    assert 0 <= np.mean(parts) < 0.004  # ten bins of 200 answers: chance adds .01
    # 7 of 8 right at .5: the squared gap of .375, less the variance of 7/64 over 8 - 1
    found = calibration([0.5] * 8, [1] * 7 + [0])
    assert found.brier_calibration == pytest.approx(0.375**2 - 7 / 64 / 7)


@pytest.mark.parametrize(
    ("confidence", "right"),
    [([0.5, 0.5, 0.5], [1, 0, 1]), ([0.2, 0.9], [1, 1]), ([0.1, 0.2, 0.8], [0, 0, 1])],
    ids=["one confidence", "one class", "no overlap"],
)
def test_without_a_line_there_is_neither_slope_nor_offset(confidence, right):
    found = calibration(confidence, right)
    assert math.isnan(found.slope) and math.isnan(found.offset) and 0 < found.p_calibrated <= 1


def test_four_answers_to_a_question_are_no_fourfold_proof():
    confidence, right, _ = answers(np.random.default_rng(8), "middle", 0.12, 60)
    once = calibration(confidence, right).p_calibrated
    four = [np.repeat(one, 4) for one in (confidence, right, np.arange(60))]
    assert calibration(*four).p_calibrated > 0.3 * once
    assert calibration(*four[:2]).p_calibrated < 0.3 * once
    # six questions of two answers, the errors of five to one side: so do 14 of 64 draws of signs
    pairs = np.repeat([1, 1, 1, 1, 1, 0], 2)
    found = calibration(np.full(12, 0.5), pairs, np.repeat(range(6), 2))
    assert found.p_calibrated == pytest.approx(14 / 64, abs=0.04)


# --- seeds


@pytest.mark.slow
@pytest.mark.parametrize("same", [True, False], ids=["the same questions", "other questions"])
@pytest.mark.parametrize("n", [200, 1000])
def test_the_true_ece_of_three_seeds_is_in_their_interval_as_often_as_it_says(n, same):
    """Of one question the seeds have one grade, and in seven of ten cases one confidence."""
    resamples = Resamples(
        [f"{s}/{q}" for s in range(1 if same else 3) for q in range(n)], resamples=300
    )
    for true in (0, 2, 5):
        covered = {}
        for shape in ("sharp", "middle"):
            off, held = off_for(shape, true / 100), []
            pool = answers(np.random.default_rng(3), shape, off, 50_000)[:2]
            of_grade = [pool[0][pool[1] == right] for right in (False, True)]
            for study in range(300):
                rng = np.random.default_rng([study, n])
                first, right, _ = answers(rng, shape, off, n)
                draws = []
                for s in range(3):
                    if not same:
                        first, right, _ = answers(rng, shape, off, n)
                    other = np.where(right, *(rng.choice(c, n) for c in of_grade[::-1]))
                    confidence = np.where(rng.random(n) < 0.7, first, other) if same else first
                    ids = [f"{0 if same else s}/{q}" for q in range(n)]
                    draws.append(resamples.evaluate(confidence, right, ids, "ece")["ece"])
                found = estimate(draws, seed=study)
                held.append(found.low <= true / 100 + 1e-4 and true / 100 - 1e-4 <= found.high)
            covered[shape] = share(held)
        print(n, same, true, covered)
        assert 0.92 <= np.mean([*covered.values()]) <= 0.98 + 0.006, (true, covered)


@pytest.mark.slow
@pytest.mark.parametrize("same", [True, False], ids=["the same questions", "other questions"])
@pytest.mark.parametrize("n", [200, 1000])
def test_a_mean_over_three_seeds_is_in_its_interval_as_often_as_it_says(n, same):
    """Differences in Brier score, in points, with seeds that differ by 0, .2 and .5 themselves."""
    gap, ids = 1.25, [[f"{0 if same else s}/{q}" for q in range(n)] for s in range(3)]
    for spread in (0.0, 0.2, 0.5):
        held, clear = [], []
        for study in range(400):
            rng = np.random.default_rng(study)
            every = [one for part in ids for one in part]
            resamples = Resamples(every, resamples=300, seed=study)
            shared, own = rng.normal(0, 9, (1 if same else 3, n)), rng.normal(0, 8, (3, n))
            value_SQ = gap + rng.normal(0, spread, (3, 1)) + shared + own
            draws = [
                resamples.ratios(part, value_Q[None])[:, 0]
                for part, value_Q in zip(ids, value_SQ, strict=True)
            ]
            found = percentiles(over_seeds(draws, seed=study))
            held.append(found.low <= gap <= found.high)
            clear.append(found.clear == 1)
        print(n, same, spread, share(held), share(clear))
        assert 0.92 - 0.013 <= share(held) <= 0.98 + 0.014, spread  # two errors of 400 studies
        if n == 1000 and spread <= 0.2:
            assert share(clear) >= (0.92 if same else 0.88), spread
