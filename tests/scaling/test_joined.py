"""Several seeds as one: means, and intervals that resample a question once for all seeds."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from grace.metrics import Resamples, over_seeds, percentiles
from grace.metrics.resampling import TAILS
from grace.scaling import Curve, Pool, Scaling, replay

BUDGETS = (1, 4)


def seed_of(ids: range, seed: int) -> tuple[list[str], Scaling]:
    """Return made-up questions of one seed and their replay; a question has one difficulty."""
    ease = np.random.default_rng(0).random(1000)[list(ids)]
    rng = np.random.default_rng(seed + 1)
    correct = rng.random((len(ids), 4)) < ease[:, None]
    answers = np.where(correct, 0, rng.integers(1, 4, correct.shape))
    confidence = np.clip(0.3 * correct + rng.random(correct.shape) * 0.6, 0, 1)
    pool = Pool(answers, correct, rng.integers(5, 9, correct.shape), {"grace": confidence})
    names = ["sc", "grace-sc", "grace-es"]
    return [f"q{n}" for n in ids], replay(pool, names, budgets=BUDGETS, orders=3, seed=seed)


def joined(parts: list[tuple[list[str], Scaling]]) -> Scaling:
    """Return the replays of several seeds as one."""
    return Scaling([[*one.curves.values()] for _, one in parts], [names for names, _ in parts])


def test_one_seed_joined_is_itself():
    names, alone = seed_of(range(40), 0)
    together = joined([(names, alone)])
    for name in alone.curves:
        for budget in BUDGETS:
            expected = pytest.approx(alone.estimate(name, budget))
            assert together.estimate(name, budget) == expected
            assert together.used(name, budget) == pytest.approx(alone.used(name, budget))


def test_the_mean_is_over_the_means_of_the_seeds():
    parts = [seed_of(range(40), 0), seed_of(range(20, 50), 1), seed_of(range(90, 100), 2)]
    together = joined(parts)
    assert together.num_questions == 60
    for measure in ("accuracy", "samples", "tokens"):
        values = [scaling.estimate("grace-es", 4, measure).value for _, scaling in parts]
        assert together.estimate("grace-es", 4, measure).value == pytest.approx(np.mean(values))
    each = [scaling.estimate("sc", 4).value for _, scaling in parts]
    assert together.spread("sc", 4) == pytest.approx(np.std(each, ddof=1))


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_few_seeds_widen_every_difference_by_students_t(seeds):
    # Without noise of questions only the seeds are left: two figures, and their difference.
    value_SF = np.random.default_rng(1).normal(0.5, 0.1, (seeds, 2))
    tops = [np.tile(value_F[:, None], 6) for value_F in value_SF]
    resamples = Resamples(range(6), resamples=40_000)
    drawn_SDF = [resamples.ratios(range(6), top_FQ) for top_FQ in tops]
    assert [drawn_DF[0] for drawn_DF in drawn_SDF] == [pytest.approx(v) for v in value_SF]
    together_DF = over_seeds(drawn_SDF)
    for weights in ([1, 0], [0, 1], [1, -1]):
        value_S = value_SF @ weights
        found = percentiles(over_seeds([drawn_DF @ weights for drawn_DF in drawn_SDF]))
        if 0 in weights:
            alike = tuple(percentiles(together_DF @ weights))
            assert tuple(found) == pytest.approx(alike, rel=0.05)
        error = value_S.std(ddof=1) / np.sqrt(seeds) if seeds > 2 else 0
        reach = stats.t.ppf(TAILS[1], seeds - 1) * error
        assert found.value == pytest.approx(value_S.mean())
        assert found.high - found.value == pytest.approx(reach, rel=0.05, abs=1e-12)
        assert found.value - found.low == pytest.approx(reach, rel=0.05, abs=1e-12)


def test_a_seed_that_a_resample_misses_is_left_out_of_its_mean():
    resamples = Resamples(["a", "b", "c"], resamples=200)
    one_DF = resamples.ratios(["a", "b"], np.array([[1.0, 1.0]]))
    other_DF = resamples.ratios(["c"], np.array([[0.0]]))
    assert set(over_seeds([one_DF, other_DF])[1:, 0]) == {0.0, 0.5, 1.0}


def curve(name: str, accuracy: list[float], samples: list[float]) -> Curve:
    """Return a curve at budgets 1, 2 and 4 that is the same for every one of ten questions."""
    values = [np.tile(np.array(value)[:, None], 10) for value in (accuracy, samples, samples)]
    return Curve(name, None, None, (1, 2, 4), np.array(values), np.zeros((3, 5)))


@pytest.mark.parametrize(
    ("accuracy", "expected"),
    [
        ([0.5, 0.6, 0.8], 2.25),  # a quarter of the way from 2 to 3 samples
        ([0.7, 0.7, 0.7], 1.0),
        ([0.5, 0.65, 0.9], 2.0),
        ([0.5, 0.6, 0.64], np.inf),
    ],
)
def test_the_samples_for_an_accuracy_lie_on_the_line_between_two_budgets(accuracy, expected):
    other = curve("sc", [0.5, 0.55, 0.65], [1, 2, 4])
    found = Scaling([[curve("es", accuracy, [1, 2, 3]), other]]).reach("es", "sc", 4)
    assert found.samples.value == pytest.approx(expected)
    assert found.saved.value == pytest.approx(4 - expected)
    assert found.reached == (0.0 if np.isinf(expected) else 1.0)
    assert (found.accuracy.value, found.reference_samples.value) == (pytest.approx(0.65), 4)


def test_an_accuracy_that_is_exactly_reached_is_reached_whatever_the_order_of_the_sum():
    rng = np.random.default_rng(0)
    values, full, none = rng.integers(0, 51, (1, 30)) / 50, np.full((1, 30), 4.0), np.zeros((1, 5))
    for _ in range(50):
        moved = rng.permuted(values, axis=1)  # binary fractions add up to a little more or less
        sides = zip(("es", "sc"), (moved, values), strict=True)
        made = [
            Curve(name, None, None, (4,), np.array([side, full, full]), none)
            for name, side in sides
        ]
        scaling = Scaling([made])
        assert scaling.difference("es", "sc", 4).value == 0
        assert scaling.reach("es", "sc", 4).samples.value == 4


def test_an_interval_of_samples_lies_between_one_and_the_budget():
    parts = []
    for used in (1.0, 1.02, 1.2):
        value_MBQ = np.array([np.full((1, 10), value) for value in (0.5, used, used)])
        one = Curve("es", None, None, (4,), value_MBQ, np.zeros((1, 5)))
        parts.append(([f"q{n}" for n in range(10)], Scaling([[one]])))
    found = joined(parts).estimate("es", 4, "samples")
    assert 1 == found.low < found.value < found.high <= 4


def test_what_is_saved_at_equal_accuracy_has_a_paired_interval():
    _, alone = seed_of(range(300), 0)
    found = alone.reach("grace-es", "sc", 4)
    assert found.saved.value == pytest.approx(4 - found.samples.value)
    assert found.saved.low <= found.saved.value <= found.saved.high
    assert alone.reach("sc", "sc", 4).samples == (4, 4, 4)


def test_differences_stay_paired():
    parts = [seed_of(range(40), 0), seed_of(range(40), 1)]
    together = joined(parts)
    expected = np.mean([scaling.difference("grace-sc", "sc", 4).value for _, scaling in parts])
    assert together.difference("grace-sc", "sc", 4).value == pytest.approx(expected)
    assert together.difference("sc", "sc", 4).width == 0


def test_seeds_that_ask_the_same_questions_tell_less_than_seeds_that_ask_others():
    same = joined([seed_of(range(200), s) for s in range(2)]).estimate("sc", 4)
    others = joined([seed_of(range(200 * s, 200 * s + 200), s) for s in range(2)])
    assert same.width > 1.2 * others.estimate("sc", 4).width


def test_only_budgets_that_every_seed_has_are_joined():
    names, one = seed_of(range(5), 0)
    pool = Pool([[0, 1]] * 5, [[1, 0]] * 5)
    other = replay(pool, ["sc"], budgets=(1, 2))
    together = joined([(names, one), (names, other)])
    assert (together.budgets, list(together.curves)) == ((1,), ["sc"])
    expected = (one.estimate("sc", 1).value + other.estimate("sc", 1).value) / 2
    assert together.estimate("sc", 1).value == pytest.approx(expected)
    assert together.used("sc", 1).tolist() == [0, 1]
