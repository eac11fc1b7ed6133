"""The fit of GrACE-vote to the samples of validation questions.

The weights are those of a conditional logit: the likelihood of the right answer, or of "another
one" where no sample is right, after every number of samples in random orders. So what the samples
of one question have in common is part of the fit. All of a question's rows together weigh as one,
and a ridge draws the weights to those without a fit: with few questions they hardly move.

Shapes: R rows (a question, an order and a number of votes), A answers, K features, G thresholds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from grace.scaling.pool import Pool
from grace.scaling.replaying import Outcome, is_right
from grace.strategies.tally import Floats, Indices, VoteTable
from grace.strategies.vote import FREE, FittedVote, posterior, tallies

ORDERS = 8
RIDGE = 1.0  # in questions
STEPS = 50
LOSS = 0.005  # accuracy that stopping early may cost on the questions of the fit
THRESHOLDS = tuple(k / 50 for k in range(1, 101))
OWN = "grace"  # the estimator whose confidences come with the tuned model's samples


def fit_vote(pool: Pool, seed: int = 0) -> FittedVote:
    """Fit the weights, and the lowest threshold from which on stopping costs hardly an answer."""
    vote, votes = FittedVote(weights=fit_weights(pool, seed)), _in_orders(pool, seed)
    chosen_RT, right_RT = vote.leading(VoteTable(votes.answer_QS, votes.confidence(OWN)))
    row_R, width = np.arange(len(chosen_RT)), votes.num_samples

    def accuracy(threshold: float) -> float:
        stop_R = replace(vote, threshold=threshold).stop(chosen_RT, right_RT)
        used_R = np.minimum(stop_R, width)
        outcome = Outcome(chosen_RT[row_R, used_R - 1], used_R)
        return float(is_right(outcome, votes.correct_QS).mean())

    whole = accuracy(THRESHOLDS[-1] + 1)
    lowest = THRESHOLDS[-1]
    for threshold in reversed(THRESHOLDS):
        if accuracy(threshold) < whole - LOSS:
            break
        lowest = threshold
    return replace(vote, threshold=lowest)


def fit_weights(pool: Pool, seed: int = 0) -> tuple[float, ...]:
    """Return the weights of the largest penalised likelihood, which has one maximum (Newton)."""
    blocks = list(_blocks(_in_orders(pool, seed)))
    share = 1 / (ORDERS * pool.num_samples)
    square_K = sum(np.square(found[:, given]).sum(axis=1) for found, given, _ in blocks)
    ridge_K = RIDGE * square_K / sum(given.sum() for _, given, _ in blocks) + 1e-9
    start = weights = np.array(FREE)
    for _ in range(STEPS):
        slope_K, curve_KK = ridge_K * (start - weights), np.diag(ridge_K)
        for found_KRA, given_RA, right_R in blocks:
            p_RA = posterior(weights, found_KRA, given_RA)
            mean_KR = (p_RA * found_KRA).sum(axis=2)
            right_KR = found_KRA[:, np.arange(len(right_R)), right_R]
            flat_KN = found_KRA.reshape(len(FREE), -1)
            slope_K += share * (right_KR - mean_KR).sum(axis=1)
            curve_KK += share * ((flat_KN * p_RA.ravel()) @ flat_KN.T - mean_KR @ mean_KR.T)
        step_K = np.linalg.solve(curve_KK, slope_K)
        weights = weights + step_K
        if np.abs(step_K).max() < 1e-9:
            break
    return tuple(weights.tolist())


def _in_orders(pool: Pool, seed: int) -> Pool:
    """Return a pool with every question in `ORDERS` random orders of its samples."""
    question_R1 = np.tile(np.arange(pool.num_questions), ORDERS)[:, None]
    order_RS = np.concatenate([*pool.orders(ORDERS, seed)])
    at, c_QS = (question_R1, order_RS), pool.confidence(OWN)
    return Pool(pool.answer_QS[at], pool.correct_QS[at], None, {OWN: c_QS[at]})


def _blocks(votes: Pool) -> Iterator[tuple[Floats, NDArray[np.bool_], Indices]]:
    """Yield the features, which answers there are, and the right one, after each vote.

    Of several right answers, "Leonardo" beside "da Vinci", it is the one with the most votes, and
    the others do not count as answers: they are no reason to doubt it.
    """
    for tally in tallies(VoteTable(votes.answer_QS, votes.confidence(OWN))):
        right_RT = votes.correct_QS[:, : tally.taken] * tally.count_RT[:, : tally.taken]
        none_R1 = ~right_RT.any(axis=1, keepdims=True)
        right_RA = np.hstack([right_RT, none_R1])
        right_R = right_RA.argmax(axis=1)
        given_RA = tally.given() & (right_RA == 0)
        given_RA[np.arange(len(right_R)), right_R] = True
        given_RA[:, -1] = True
        yield tally.features(), given_RA, right_R
