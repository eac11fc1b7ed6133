"""Metrics against hand numbers, slow references written here, scikit-learn and torchmetrics."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grace import metrics
from grace.errors import UserInputError
from grace.metrics import Bar, Resamples, auroc, bootstrap, brier, ece, reliability, wqd
from grace.metrics.kernels import Counted, check, sort_by_confidence
from grace.metrics.resampling import TAILS


def metric(name):
    return lambda *args, **options: metrics.evaluate(*args, name, **options)[name]


adaptive_ece, aurc, smooth_ece = map(metric, ("adaptive_ece", "aurc", "smooth_ece"))


def made_up(n=400, seed=0):
    rng = np.random.default_rng(seed)
    confidence = rng.beta(2, 1, n)
    return confidence, rng.random(n) < confidence**2


pairs = st.lists(
    st.tuples(st.one_of(st.sampled_from([0.0, 0.3, 0.5, 1.0]), st.floats(0, 1)), st.booleans()),
    min_size=1,
    max_size=40,
)


# --- numbers by hand


def test_metrics_equal_hand_numbers():
    confidence, correct = [0.95, 0.85, 0.85, 0.05], [True, False, True, False]
    assert ece(confidence, correct) == pytest.approx((0.05 + 0.7 + 0.05) / 4)
    assert brier(confidence, correct) == pytest.approx((0.05**2 + 0.85**2 + 0.15**2 + 0.05**2) / 4)
    assert auroc(confidence, correct) == pytest.approx(3.5 / 4)
    assert metrics.evaluate(confidence, correct, "accuracy") == {"accuracy": 0.5}
    # risks of the surest k: 0, then 1/4 = (0 + 1/2) / 2, 1/3, 2/4
    assert aurc(confidence, correct) == pytest.approx((0 + 0.25 + 1 / 3 + 0.5) / 4)


def test_a_confidence_of_exactly_one_counts_in_the_last_bin():
    confidence, correct = [1.0] * 10, [True] * 8 + [False] * 2
    assert ece(confidence, correct) == pytest.approx(0.2)
    assert reliability(confidence, correct)[-1] == Bar(0.9, 1.0, 10, 1.0, 0.8)


def test_a_confidence_of_exactly_zero_counts_in_the_first_bin():
    assert ece([0.0] * 4, [True, False, False, False]) == pytest.approx(0.25)
    assert reliability([0.0] * 4, [True, False, False, False])[0].n == 4


@pytest.mark.parametrize("k", range(11))
def test_a_confidence_on_an_edge_belongs_to_the_bin_above(k):
    rows = reliability([k / 10], [True])
    assert rows[min(k, 9)].n == 1


def test_certain_and_right_is_perfect_and_certain_and_wrong_is_worst():
    right, wrong = ([1.0, 0.0], [True, False]), ([1.0, 0.0], [False, True])
    for metric in (ece, adaptive_ece, brier):
        assert metric(*right) == 0 and metric(*wrong) == 1
    # mass +1/2 at 0 and -1/2 at 1: kernels that wide meet in the middle and cancel
    assert smooth_ece(*right) == pytest.approx(0, abs=1e-12)
    assert 0.3 < smooth_ece(*wrong) < 0.6
    assert auroc(*right) == 1 and auroc(*wrong) == 0


def test_empty_bins_add_nothing_and_are_reported_empty():
    rows = reliability([0.05, 0.95], [False, True])
    assert [row.n for row in rows] == [1] + [0] * 8 + [1]
    assert rows[4].confidence is None and rows[4].accuracy is None
    assert ece([0.05, 0.95], [False, True]) == pytest.approx(0.05)


@pytest.mark.parametrize("label", [True, False])
def test_auroc_of_one_class_is_nan_and_the_others_are_defined(label):
    values = metrics.evaluate([0.2, 0.9, 0.9], [label] * 3)
    assert math.isnan(values.pop("auroc"))
    assert all(0 <= value <= 1 for value in values.values())


def test_all_ties_say_nothing():
    assert auroc([0.7] * 6, [True, False] * 3) == 0.5
    assert aurc([0.7] * 6, [True, False] * 3) == pytest.approx(0.5)


# Answers at confidence (k + 1/2) / 60, how many of them are right, and both at exactly 1, searched
# for so that ECE is that of a published comparison whose own points were not published.
NUM = [
    *(3, 3, 6, 3, 3, 5, 6, 13, 3, 4, 3, 5, 4, 5, 3, 7, 3, 9, 9, 4),
    *(10, 5, 7, 5, 8, 4, 3, 3, 10, 9, 8, 8, 13, 10, 16, 21, 15, 20, 19, 19),
    *(19, 22, 23, 23, 23, 23, 23, 23, 22, 23, 11, 23, 14, 22, 7, 19, 17, 23, 23, 3, 300),
]
RIGHT = [
    *(0, 0, 1, 0, 0, 0, 0, 2, 0, 2, 1, 0, 0, 0, 1, 0, 3, 4, 0, 2),
    *(6, 2, 4, 3, 0, 3, 3, 1, 7, 8, 1, 8, 5, 7, 7, 14, 2, 16, 18, 17),
    *(5, 16, 19, 21, 20, 21, 21, 19, 20, 22, 9, 18, 13, 19, 5, 19, 16, 22, 22, 3, 240),
]


@pytest.mark.parametrize(("bins", "percent"), [(10, 9.09), (15, 10.16), (20, 10.68)])
def test_ece_is_that_of_a_published_comparison(bins, percent):
    """Where the last bin is open, as in other code, it is 3.09: 300 of 1,000 are sure."""
    confidence = np.repeat([*((np.arange(60) + 0.5) / 60), 1.0], NUM)
    correct = np.concatenate([np.arange(n) < k for n, k in zip(NUM, RIGHT, strict=True)])
    assert round(100 * ece(confidence, correct, bins), 2) == percent
    assert reliability(confidence, correct)[-1].n == sum(NUM[54:])


# --- slow references


def smooth_ece_slow(confidence, correct, points=1001):
    """smECE_* by quadrature, the reflected kernel summed image by image."""
    confidence, gap = np.asarray(confidence), np.asarray(correct) - np.asarray(confidence)
    t = np.linspace(0, 1, points)
    step = np.full(points, 1 / (points - 1))
    step[[0, -1]] /= 2

    def smoothed(width):
        density = np.zeros((points, len(confidence)))
        for shift in range(-8, 9, 2):
            for sign in (1, -1):
                z = (t[:, None] - (sign * confidence[None] + shift)) / width
                density += np.exp(-0.5 * z**2) / (width * math.sqrt(2 * math.pi))
        return float(step @ np.abs(density @ gap)) / len(gap)

    low, high = 0.002, 1.0
    for _ in range(14):
        middle = (low + high) / 2
        low, high = (middle, high) if smoothed(middle) > middle else (low, middle)
    return smoothed(high)


@pytest.mark.parametrize(("power", "round_to"), [(1, 15), (3, 15), (3, 1)])
def test_smooth_ece_equals_quadrature_over_the_reflected_kernel(power, round_to):
    rng = np.random.default_rng(power)
    confidence = rng.random(60).round(round_to)
    correct = rng.random(60) < confidence**power
    expected = smooth_ece_slow(confidence, correct)
    assert smooth_ece(confidence, correct) == pytest.approx(expected, abs=1e-4)


@given(pairs.filter(lambda rows: len(rows) <= 6))
@settings(max_examples=30, deadline=None)
def test_aurc_of_ties_is_the_mean_over_all_their_orderings(rows):
    areas = []
    for order in itertools.permutations(rows):
        if all(a[0] >= b[0] for a, b in itertools.pairwise(order)):
            wrong = np.cumsum([not correct for _, correct in order])
            areas.append(np.mean(wrong / np.arange(1, len(rows) + 1)))
    assert aurc(*zip(*rows, strict=True)) == pytest.approx(np.mean(areas))


def test_adaptive_ece_without_ties_splits_into_equal_parts():
    confidence, correct = made_up(n=50)
    order = np.argsort(confidence)
    gaps = [abs((correct[part] - confidence[part]).sum()) for part in np.array_split(order, 10)]
    assert adaptive_ece(confidence, correct) == pytest.approx(sum(gaps) / 50)


def test_wqd_counts_pairs_within_questions_only():
    questions = ["a", "a", "b", "b", "b", "c"]
    confidence = [0.9, 0.8, 0.1, 0.3, 0.3, 0.99]
    correct = [True, False, True, False, True, False]
    assert wqd(confidence, correct, questions) == pytest.approx((1 + 0 + 0.5) / 3)
    assert math.isnan(wqd([0.1, 0.2], [True, False], ["a", "b"]))


def test_wqd_is_the_share_of_all_pairs_that_the_right_response_wins():
    confidence, correct = made_up(n=90)
    tied, questions = confidence.round(1), [f"q{n % 7}" for n in range(90)]
    rows = list(zip(questions, tied, correct, strict=True))
    wins = [
        (c > d) + (c == d) / 2
        for q, c, right in rows
        for p, d, other in rows
        if q == p and right and not other
    ]
    assert wqd(tied, correct, questions) == pytest.approx(np.mean(wins))


# --- oracles


@pytest.mark.parametrize("round_to", [1, 15])
def test_auroc_and_brier_agree_with_scikit_learn(round_to):
    from sklearn.metrics import brier_score_loss, roc_auc_score

    confidence, correct = made_up()
    confidence = confidence.round(round_to)
    assert auroc(confidence, correct) == pytest.approx(roc_auc_score(correct, confidence))
    assert brier(confidence, correct) == pytest.approx(brier_score_loss(correct, confidence))


@pytest.mark.parametrize("bins", [10, 15])
def test_ece_agrees_with_torchmetrics_away_from_the_edges(bins):
    torch = pytest.importorskip("torch")
    functional = pytest.importorskip("torchmetrics.functional.classification")

    confidence, correct = made_up()
    theirs = functional.binary_calibration_error(
        torch.tensor(confidence), torch.tensor(correct), n_bins=bins
    )
    assert ece(confidence, correct, bins) == pytest.approx(float(theirs), abs=1e-6)


# --- properties


@given(pairs)
@settings(max_examples=60, deadline=None)
def test_every_metric_is_a_fraction_whatever_the_order(rows):
    confidence, correct = zip(*rows, strict=True)
    values = metrics.evaluate(confidence, correct)
    backwards = metrics.evaluate(confidence[::-1], correct[::-1])
    for name, value in values.items():
        assert math.isnan(value) or -1e-12 <= value <= 1 + 1e-12, name
        assert backwards[name] == pytest.approx(value, abs=1e-9, nan_ok=True), name


@given(pairs)
@settings(max_examples=60, deadline=None)
def test_auroc_and_aurc_depend_on_the_order_of_confidences_only(rows):
    confidence, correct = np.array([c for c, _ in rows]), [y for _, y in rows]
    ranks = np.unique(confidence, return_inverse=True)[1]
    mapped = (ranks + 1) / (ranks.max() + 2)
    assert auroc(mapped, correct) == pytest.approx(auroc(confidence, correct), nan_ok=True)
    assert aurc(mapped, correct) == pytest.approx(aurc(confidence, correct))


@given(pairs, st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_counts_mean_repetition(rows, random):
    confidence, correct = zip(*rows, strict=True)
    weights = [random.randint(0, 3) for _ in rows]
    weights[0] = 2
    for name, kernel in metrics.METRICS.items():
        repeated = metric(name)(np.repeat(confidence, weights), np.repeat(correct, weights))
        data = sort_by_confidence(*check(confidence, correct))
        weighted = float(kernel(Counted(data, np.array(weights, float)[None, data.order_N]))[0])
        assert weighted == pytest.approx(repeated, abs=1e-9, nan_ok=True), name


# --- bootstrap


def test_a_bootstrap_equals_evaluating_the_resampled_rows():
    confidence, correct = made_up(n=30)
    drawn = np.random.default_rng(5).integers(30, size=(20, 30))
    resamples = Resamples(range(30), resamples=20, seed=5)
    for name, draws in resamples.evaluate(confidence, correct, range(30)).items():
        slow = [metric(name)(confidence[rows], correct[rows]) for rows in drawn]
        value_R = np.abs(draws).sum(axis=1) if draws.ndim == 2 else draws
        assert value_R[1:] == pytest.approx(slow, nan_ok=True), name
        if draws.ndim == 1:
            found = bootstrap(confidence, correct, name, resamples=20, seed=5)[name]
            ends = np.nanquantile(slow, TAILS, method="weibull")
            assert found == pytest.approx(tuple(ends)), name


def test_intervals_hold_the_value_and_cover_the_truth_about_as_often_as_they_say():
    covered = 0
    for seed in range(60):
        confidence = np.random.default_rng(seed).random(200)
        correct = np.random.default_rng(1000 + seed).random(200) < confidence
        low, high = bootstrap(confidence, correct, "brier", resamples=200)["brier"]
        covered += low <= 1 / 6 <= high  # E[c(1 - c)] for uniform c
    assert 50 <= covered <= 60


def test_whole_questions_are_resampled_when_asked():
    confidence, correct = made_up(n=50)
    alone = bootstrap(confidence, correct, "brier", resamples=300)["brier"]
    four = (np.tile(confidence, 4), np.tile(correct, 4), "brier")
    grouped = bootstrap(*four, resamples=300, questions=list(range(50)) * 4)["brier"]
    naive = bootstrap(*four, resamples=300)["brier"]
    assert grouped == pytest.approx(alone)
    assert naive[1] - naive[0] < 0.7 * (alone[1] - alone[0])


def test_answers_to_one_question_have_no_interval():
    low, high = bootstrap(*made_up(n=50), "brier", questions=["A?"] * 50)["brier"]
    assert np.isnan(low) and np.isnan(high)


def test_a_bootstrap_is_repeatable_and_seeded():
    data = made_up()
    first = bootstrap(*data, seed=1, resamples=100)
    assert bootstrap(*data, seed=1, resamples=100) == first
    assert bootstrap(*data, seed=2, resamples=100) != first


def test_an_undefined_metric_has_an_undefined_interval():
    interval = bootstrap([0.1, 0.9], [True, True], ["auroc", "brier"], resamples=10)
    assert all(math.isnan(end) for end in interval["auroc"])
    assert not any(math.isnan(end) for end in interval["brier"])


def test_an_interval_of_ece_takes_off_what_noise_adds():
    """Always 3 points too sure: percentiles lie above the true ECE in nearly every study."""
    covered = {"percentile": 0, "interval": 0}
    drawn = Resamples(range(500), resamples=200)
    for study in range(60):
        rng = np.random.default_rng(study)
        truth = rng.uniform(0.05, 0.85, 500)
        right = rng.random(500) < truth
        gap_RK = drawn.evaluate(truth + 0.03, right, range(500), "ece")["ece"]
        low, high = np.quantile(np.abs(gap_RK[1:]).sum(axis=1), [0.025, 0.975])
        covered["percentile"] += low <= 0.03 <= high
        found = metrics.estimate([gap_RK])
        covered["interval"] += found.low <= 0.03 <= found.high
        assert found.value == pytest.approx(ece(truth + 0.03, right))
    assert covered["percentile"] < 10 and covered["interval"] > 53


def test_intervals_are_fractions_and_those_of_differences_may_be_negative():
    near_one_R = np.array([0.99, 0.98, 1.02])  # seeds add a symmetric error
    assert metrics.estimate([near_one_R]).high == 1
    assert metrics.difference([near_one_R - 1], [near_one_R * 0]).low < 0


def test_resamples_are_shared_so_identical_results_differ_by_nothing_in_every_draw():
    confidence, correct = made_up(n=50)
    drawn = Resamples([f"q{i}" for i in range(60)], resamples=20)
    ids = [f"q{i}" for i in range(50)]
    forward = drawn.evaluate(confidence, correct, ids)
    backward = drawn.evaluate(confidence[::-1], correct[::-1], ids[::-1])
    for name, value_R in forward.items():
        assert backward[name] == pytest.approx(value_R), name


def test_a_draw_that_misses_all_of_a_small_part_is_left_out():
    drawn = Resamples(range(100), resamples=50)
    values = drawn.evaluate([0.2, 0.9], [False, True], [3, 4])
    missed = np.isnan(values["brier"])
    assert 0 < missed.sum() < 50 and not missed[0]
    assert all(np.isnan(value_R[missed]).all() for value_R in values.values())
    assert metrics.estimate([values["brier"]])[1:3] == pytest.approx((0.01, 0.04))


def test_from_three_seeds_on_their_spread_widens_the_draws():
    value_SR = [np.full(1001, value) for value in (0.1, 0.2, 0.3)]
    drawn_R = metrics.over_seeds(value_SR)
    assert drawn_R[0] == pytest.approx(0.2)
    low, high = np.quantile(drawn_R[1:], [0.025, 0.975])
    expected = 4.303 * 0.1 / math.sqrt(3)  # Student's t, 2 degrees of freedom
    assert (0.2 - low, high - 0.2) == pytest.approx((expected, expected), rel=0.25)
    assert metrics.over_seeds(value_SR[:2]) == pytest.approx(np.full(1001, 0.15))


def test_the_draws_of_a_difference_are_paired_and_tighter_than_two_intervals():
    confidence, correct = made_up()
    worse, resamples = np.sqrt(confidence), metrics.Resamples(range(400), resamples=300)
    one, other = (
        resamples.evaluate(side, correct, range(400), "brier")["brier"]
        for side in (worse, confidence)
    )
    assert (one - other)[0] == pytest.approx(brier(worse, correct) - brier(confidence, correct))
    gap, low, high = metrics.difference([one], [other])
    assert 0 < low < gap < high
    alone = bootstrap(worse, correct, "brier", resamples=300)["brier"]
    assert high - low < alone[1] - alone[0]


# --- what cannot be used


@pytest.mark.parametrize(
    ("confidence", "correct", "told"),
    [
        ([], [], "0 responses"),
        ([0.5, math.nan], [True, False], r"confidence\[1\] is nan"),
        ([0.5, None], [True, False], r"confidence\[1\] is nan"),
        ([1.2], [True], r"confidence\[0\] is 1.2"),
        ([-0.1], [True], r"confidence\[0\] is -0.1"),
        ([90.0], [True], r"confidence\[0\] is 90.0"),
        ([0.5, 0.5], [True], r"\(2,\) and correct \(1,\)"),
        ([[0.5]], [[True]], r"\(1, 1\)"),
        ([0.5], [2], r"correct\[0\] is 2.0"),
        ([0.5], [math.nan], r"correct\[0\] is nan"),
    ],
)
def test_unusable_input_is_refused_with_the_value(confidence, correct, told):
    for metric in (ece, auroc, smooth_ece, reliability, bootstrap):
        with pytest.raises(UserInputError, match=told):
            metric(confidence, correct)


def test_unusable_options_are_refused_with_the_value():
    data = made_up(n=4)
    with pytest.raises(UserInputError, match="bins is 0"):
        ece(*data, bins=0)
    with pytest.raises(UserInputError, match="unknown metric 'mce'"):
        bootstrap(*data, "mce")
    with pytest.raises(UserInputError, match="3 question ids for 4"):
        wqd(*data, questions=[1, 2, 3])
