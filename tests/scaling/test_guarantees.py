"""Thresholds for early stopping are fitted on what early stopping does."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from scipy import stats

from grace.errors import UserInputError
from grace.records import Vote
from grace.scaling import Pool, accuracy_threshold
from grace.scaling.replaying import early_stops, is_right, outcomes
from grace.strategies import EarlyStop, FittedVote, decide, vote
from grace.strategies.tally import VoteTable
from grace.thresholds import GRID, pick, selective

COARSE = tuple(k / 20 for k in range(21, -1, -1))
FINE = tuple(k / 100 for k in range(100, -1, -1))
DELTAS = (0.05, 0.1, 0.2)


class Broken(NamedTuple):
    """Of guarantees made on random parts of a pool: shares of the parts."""

    delta: float
    promised: float  # a threshold was found
    broken: float  # it was, and the guarantee is false of the source; delta bounds this
    on_rest: float  # it was, and the guarantee is false of the other part, whose noise is on top
    coverage: float


def random_parts(count, splits, share, seed):
    """Return random parts of the questions as rows of 0 and 1: (D, Q)."""
    first = np.broadcast_to(np.arange(count) < round(share * count), (splits, count))
    return np.random.default_rng(seed).permuted(first, axis=1).astype(np.float32)


def broken_on_parts(
    pool, target, *, budget, grid, source, share=0.5, splits=1000, seed=0, deltas=DELTAS
):
    """Choose thresholds on many random parts of a pool; judge each on many other questions.

    `source` is a pool of these, and the part's own questions are in none of the two figures.
    """
    answered_GQ, right_GQ = early_stops(pool, budget, "grace", grid)
    part_DQ = random_parts(pool.num_questions, splits, share, seed)
    n, size = pool.num_questions, int(part_DQ[0].sum())
    answered_DG, right_DG = (
        (part_DQ @ each.T.astype(np.float32)).astype(int) for each in (answered_GQ, right_GQ)
    )
    many_G, good_G = (each.sum(axis=1) for each in early_stops(source, budget, "grace", grid))
    false_G = good_G < target * many_G
    answered_G, right_G = answered_GQ.sum(axis=1), right_GQ.sum(axis=1)
    on_rest_DG = right_G - right_DG < target * (answered_G - answered_DG)
    coverage_G = answered_G / n
    for delta in deltas:
        picked_D = pick([answered_DG], [right_DG], [size], target, delta)
        found_D, rows_D = picked_D >= 0, np.arange(splits)
        yield Broken(
            delta,
            found_D.mean(),
            (found_D & false_G[picked_D]).mean(),
            (found_D & on_rest_DG[rows_D, picked_D]).mean(),
            (found_D * coverage_G[picked_D]).mean(),
        )


def pool_of(questions: int, samples: int = 8, seed: int = 0) -> Pool:
    rng = np.random.default_rng(seed)
    ease_Q1 = rng.random((questions, 1))
    right = rng.random((questions, samples)) < ease_Q1
    answers = np.where(right, 0, rng.integers(-1, 4, right.shape))
    noise = rng.normal(0, 0.15, right.shape)
    confidence = np.clip(0.5 * ease_Q1 + 0.4 * (answers == 0) + noise, 0, 1)
    return Pool(answers, answers == 0, None, {"grace": confidence})


def test_the_fitted_outcomes_are_those_of_decide():
    pool = pool_of(40)
    answered, right = early_stops(pool, 6, "grace", COARSE)
    for g, tau in enumerate(COARSE):
        for q, answers in enumerate(pool.answer_QS):
            rows = zip(answers, pool.confidence("grace")[q], strict=True)
            votes = [Vote(None if a < 0 else str(a), float(c)) for a, c in rows]
            decision = decide(EarlyStop(tau), votes, 6)
            taken = votes[: decision.samples]
            sure = any(v.answer is not None and v.confidence >= tau for v in taken)
            assert answered[g, q] == sure
            good = decision.answer is not None and pool.correct_QS[q, int(decision.answer)]
            assert right[g, q] == (good and answered[g, q])


def test_with_one_sample_it_is_selective_answering():
    pool = pool_of(2000)
    first = pool.confidence("grace")[:, 0].copy()
    first[pool.answer_QS[:, 0] < 0] = np.nan
    alone = selective(first, pool.correct_QS[:, 0], target=0.85)
    assert alone.tau is not None
    assert accuracy_threshold(pool, 0.85, budget=1) == alone
    names = ["a", "b"] * 1000
    each = selective(first, pool.correct_QS[:, 0], target=0.85, sources=names)
    assert each.tau is not None and len(each.sources) == 2
    assert accuracy_threshold(pool, 0.85, budget=1, sources=names) == each


def test_a_threshold_for_one_sample_is_too_loose_for_the_first_sure_one_of_eight():
    # Hard questions get eight chances to be sure of a wrong answer.
    rng = np.random.default_rng(0)
    right = rng.random((3000, 8)) < rng.random((3000, 1))
    confidence = np.clip(0.4 + 0.3 * right + rng.normal(0, 0.12, right.shape), 0, 1)
    pool = Pool(1 - right, right, None, {"grace": confidence})
    one = accuracy_threshold(pool, 0.8, budget=1, grid=FINE)
    eight = accuracy_threshold(pool, 0.8, budget=8, grid=FINE)
    assert eight.tau > one.tau + 0.04
    answered, right = early_stops(pool, 8, "grace", [one.tau])
    assert right.sum() < 0.78 * answered.sum()


@pytest.mark.parametrize(("target", "samples"), [(0.9, 8), (0.8, 8), (0.75, 1)])
def test_over_random_splits_a_guarantee_is_false_in_at_most_delta(target, samples):
    pool, source = pool_of(1200), pool_of(20_000, seed=1)
    for found in broken_on_parts(pool, target, budget=samples, grid=FINE, share=0.3, source=source):
        print(target, samples, found)
        assert found.promised > 0.5
        assert found.broken <= stats.binom.isf(1e-3, 1000, found.delta) / 1000
        assert 0 < found.coverage <= 1


def test_the_parts_are_fitted_as_a_pool_of_their_own_is():
    pool = pool_of(200)
    parts = random_parts(200, 20, 0.5, seed=3)
    taus = [
        accuracy_threshold(
            pool.take(np.flatnonzero(part)), 0.9, budget=4, delta=0.2, grid=COARSE
        ).tau
        for part in parts
    ]
    how = {"budget": 4, "deltas": [0.2], "grid": COARSE, "splits": 20, "seed": 3}
    (found,) = broken_on_parts(pool, 0.9, source=pool, **how)
    answered, right = early_stops(pool, 4, "grace", COARSE)
    at = [COARSE.index(tau) for tau in taus if tau is not None]
    assert len(at) > 0 and found.promised == len(at) / 20
    assert found.coverage == pytest.approx(answered.mean(axis=1)[at].sum() / 20)
    assert found.broken == sum(right[g].sum() < 0.9 * answered[g].sum() for g in at) / 20


def test_what_the_pool_lacks_is_refused():
    with pytest.raises(UserInputError, match="pool holds 8 samples"):
        accuracy_threshold(pool_of(5), 0.9, budget=9)
    with pytest.raises(UserInputError, match="no confidences of 'p_true'"):
        accuracy_threshold(pool_of(5), 0.9, budget=8, estimator="p_true")


def test_the_default_grid_is_quick_enough_to_try_on_a_thousand_questions():
    answered, right = early_stops(pool_of(1000), 8, "grace")
    assert answered.shape == right.shape == (len(GRID), 1000)
    assert (np.diff(answered.sum(axis=1)) >= 0).all()


def test_the_samples_of_a_fitted_vote_are_read_once_for_all_thresholds(monkeypatch):
    pool, seen = pool_of(40, seed=3), []
    table = VoteTable(pool.answer_QS[:, :6], pool.confidence("grace")[:, :6])
    expected = []
    for tau in COARSE:
        strategy = FittedVote(threshold=tau)
        (outcome,) = outcomes(strategy, table, [6])
        answered_Q = strategy.stops(table) <= 6
        expected.append((answered_Q, answered_Q & is_right(outcome, pool.correct_QS[:, :6])))
    tallies = vote.tallies
    monkeypatch.setattr(vote, "tallies", lambda table: seen.append(table) or tallies(table))
    found = early_stops(pool, 6, "grace", COARSE, lambda tau: FittedVote(threshold=tau))
    assert len(seen) == 1
    assert np.array_equal(np.moveaxis(found, 0, 1), expected)
    assert 0 < np.sum(found[0]) < found[0].size
