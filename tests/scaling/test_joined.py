"""Several seeds as one: means, and intervals that resample a question once for all seeds."""

from __future__ import annotations

import numpy as np
import pytest

from grace.errors import UserInputError
from grace.scaling import Pool, Scaling, joined, replay

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


def test_one_seed_joined_is_itself():
    names, alone = seed_of(range(40), 0)
    together = joined([(names, alone)])
    for name in alone.curves:
        for budget in BUDGETS:
            expected = pytest.approx(alone.estimate(name, budget))
            assert together.estimate(name, budget) == expected
            one, other = (side.curves[name].used_BV for side in (alone, together))
            assert one == pytest.approx(other)


def test_the_mean_is_over_all_answers_of_all_seeds():
    parts = [seed_of(range(40), 0), seed_of(range(20, 50), 1), seed_of(range(90, 100), 2)]
    together = joined(parts)
    assert together.num_questions == 60
    for measure in ("accuracy", "samples", "tokens"):
        values = [scaling.estimate("grace-es", 4, measure).value for _, scaling in parts]
        expected = np.average(values, weights=[40, 30, 10])
        assert together.estimate("grace-es", 4, measure).value == pytest.approx(expected)


def test_differences_stay_paired():
    parts = [seed_of(range(40), 0), seed_of(range(40), 1)]
    together = joined(parts)
    expected = np.mean([scaling.difference("grace-sc", "sc", 4).value for _, scaling in parts])
    assert together.difference("grace-sc", "sc", 4).value == pytest.approx(expected)
    assert together.difference("sc", "sc", 4).width == 0


def test_seeds_that_ask_the_same_questions_tell_less_than_seeds_that_ask_others():
    same = joined([seed_of(range(200), s) for s in range(4)]).estimate("sc", 4)
    others = joined([seed_of(range(200 * s, 200 * s + 200), s) for s in range(4)])
    assert same.width > 1.5 * others.estimate("sc", 4).width


def test_replays_with_other_budgets_cannot_be_joined():
    names, one = seed_of(range(5), 0)
    pool = Pool([[0, 1]] * 5, [[1, 0]] * 5)
    with pytest.raises(UserInputError, match="different budgets"):
        joined([(names, one), (names, replay(pool, ["sc"], budgets=(1, 2)))])
    with pytest.raises(UserInputError, match="0 replays"):
        joined([])
