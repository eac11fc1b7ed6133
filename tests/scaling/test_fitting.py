"""The fit of GrACE-vote: its optimum, its calibration on new questions, its threshold."""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile

import numpy as np
import pytest

from grace.scaling import Pool, fit_vote, fitting, replay
from grace.scaling.fitting import fit_weights
from grace.scaling.replaying import is_right, outcomes
from grace.strategies import FittedVote, Policy
from grace.strategies.tally import VoteTable
from grace.strategies.vote import FREE, posterior


def pool_of(questions: int, seed: int, samples: int = 8) -> Pool:
    """Samples that share a question's difficulty, and a wrong answer that comes often.

    c is the accuracy of the question's samples, moved a little by whether the sample is right.
    """
    rng = np.random.default_rng(seed)
    ease_Q1 = rng.beta(0.7, 0.9, size=(questions, 1))
    right_QS = rng.uniform(size=(questions, samples)) < ease_Q1
    wrong_QS = np.where(
        rng.uniform(size=right_QS.shape) < 0.6, 1, rng.integers(2, 9, right_QS.shape)
    )
    odds_QS = np.log(ease_Q1 / (1 - ease_Q1)).clip(-3, 3) + 0.8 * (2 * right_QS - 1)
    odds_QS += rng.normal(size=right_QS.shape)
    answer_QS = np.where(right_QS, 0, wrong_QS)
    answer_QS[rng.uniform(size=right_QS.shape) < 0.05] = -1
    return Pool(answer_QS, right_QS, None, {"grace": 1 / (1 + np.exp(-odds_QS))})


def decided(vote: FittedVote, pool: Pool) -> tuple[np.ndarray, np.ndarray]:
    table = VoteTable(pool.answer_QS, pool.confidence("grace"))
    place_Q = vote.chooses(table)
    right_Q = (place_Q >= 0) & pool.correct_QS[np.arange(pool.num_questions), place_Q]
    return vote.confidence(table), right_Q


def test_the_probability_of_the_fit_is_calibrated_on_new_questions():
    known, new = pool_of(400, 0), pool_of(2000, 1)
    vote = fit_vote(known)
    sure_Q, right_Q = decided(vote, new)
    assert abs(sure_Q.mean() - right_Q.mean()) < 0.03
    by_sureness = np.array_split(np.argsort(sure_Q), 5)
    gaps = [abs(sure_Q[part].mean() - right_Q[part].mean()) for part in by_sureness]
    assert max(gaps) < 0.1
    free_Q, _ = decided(FittedVote(), new)
    scores = [np.square(each_Q - right_Q).mean() for each_Q in (sure_Q, free_Q)]
    assert scores[0] < scores[1]


def test_of_several_right_answers_only_the_one_with_the_most_votes_counts():
    """Else the vote would learn to doubt a leader that is right in other words too."""
    pool = Pool([[0, 1, 1, 2]], [[True, True, True, False]], None, {"grace": [[0.5] * 4]})
    blocks = [(given_RA[0].tolist(), right_R[0]) for _, given_RA, right_R in fitting._blocks(pool)]
    assert blocks == [
        ([True, True], 0),
        ([True, False, True], 0),
        ([False, True, False, True], 1),
        ([False, True, False, True, True], 1),
    ]


@pytest.mark.parametrize("seed", [3, 4, 5])
def test_the_threshold_is_the_lowest_that_keeps_the_accuracy_of_a_replay(seed):
    pool = pool_of(60, seed)
    vote, votes = fit_vote(pool, seed), fitting._in_orders(pool, seed)
    table = VoteTable(votes.answer_QS, votes.confidence("grace"))

    def accuracy(threshold: float) -> float:
        (outcome,) = outcomes(replace(vote, threshold=threshold), table, [8])
        return is_right(outcome, votes.correct_QS).mean()

    least = accuracy(9.0) - fitting.LOSS
    enough = takewhile(lambda tau: accuracy(tau) >= least, reversed(fitting.THRESHOLDS))
    assert vote.threshold == min(enough) < fitting.THRESHOLDS[-1]


def test_the_fitted_vote_is_as_right_as_the_whole_vote_with_fewer_samples():
    vote = fit_vote(pool_of(400, 0))
    policies = ["sc", "grace-sc", Policy("fitted", vote, "grace")]
    policies.append(Policy("whole", replace(vote, threshold=9.0), "grace"))
    found = replay(pool_of(2000, 1), policies, budgets=[8], orders=4)
    right = {name: found.estimate(name, 8).value for name in found.curves}
    assert right["whole"] > right["sc"] + 0.02
    assert right["fitted"] > right["whole"] - 0.015
    assert found.estimate("fitted", 8, "samples").value < 6.5


def test_the_weights_are_the_maximum_of_the_penalised_likelihood():
    pool = pool_of(60, 2)
    votes = fitting._in_orders(pool, 0)
    blocks, share = list(fitting._blocks(votes)), 60 / votes.answer_QS.size

    def value(weights: np.ndarray) -> float:
        total = 0.0
        for found_KRA, given_RA, right_R in blocks:
            p_RA = posterior(weights, found_KRA, given_RA)
            total += share * np.log(p_RA[np.arange(len(right_R)), right_R]).sum()
        cells = np.concatenate([found[:, given] for found, given, _ in blocks], axis=1)
        ridge_K = np.square(cells).mean(axis=1)
        return total - (ridge_K * np.square(weights - FREE)).sum() / 2

    best = np.array(fit_weights(pool))
    for at in range(len(FREE)):
        for step in (-0.01, 0.01):
            assert value(best + step * np.eye(len(FREE))[at]) < value(best)


@pytest.mark.parametrize("correct", [True, False])
def test_with_few_questions_the_weights_hardly_move(correct: bool):
    pool = Pool(
        [[0, 0, 1], [0, 1, 1]], np.full((2, 3), correct), None, {"grace": np.full((2, 3), 0.5)}
    )
    weights = fit_vote(pool).weights
    assert np.isfinite(weights).all() and np.abs(np.subtract(weights, FREE)).max() < 1


def test_votes_without_a_confidence_and_questions_without_an_answer_are_fitted_too():
    rng = np.random.default_rng(3)
    pool = pool_of(50, 4)
    c_QS = np.where(rng.uniform(size=(50, 8)) < 0.3, np.nan, pool.confidence("grace"))
    answer_QS = np.where(np.arange(50)[:, None] < 5, -1, pool.answer_QS)
    vote = fit_vote(Pool(answer_QS, pool.correct_QS, None, {"grace": c_QS}))
    assert np.isfinite(vote.weights).all() and 0 < vote.threshold <= 2


def test_the_fit_is_the_same_again():
    assert fit_vote(pool_of(40, 5), seed=1) == fit_vote(pool_of(40, 5), seed=1)
