"""c along the way: the steps of responses at which it is fitted, and the fit.

Shapes: N responses, B steps of each, M = N * B, D hidden size, F features.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from grace.evidence import clipped
from grace.evidence.trace import Trace, features_at
from grace.probe.logistic import fit_logistic
from grace.probe.rows import Array, varying

if TYPE_CHECKING:
    from grace.probe.readout import Fit

STEPS = 8  # of each response, at which a trace is fitted


class Steps(NamedTuple):
    """B steps of each response: what is known there.

    `at_NBD` are the states there, `mean_NBD` the means of the states of all steps up to there,
    `step_NB` the steps, each the number of tokens before it, and `logprobs` those of all tokens.
    """

    at_NBD: Array
    mean_NBD: Array
    step_NB: Array
    logprobs: Sequence[Sequence[float]]

    def features(self, read_NB: Array, mean_NB: Array) -> Array:
        """Return the `TRACE_FEATURES` (M, F) of readings there and of their means up to there."""
        rows = zip(self.logprobs, self.step_NB, read_NB, mean_NB, strict=True)
        return varying(np.concatenate([features_at(clipped(row[0]), *row[1:]) for row in rows]))


class TraceFit(NamedTuple):
    """A trace, and the log loss of each response, mean over its steps, by a fit without it (N,)."""

    trace: Trace
    losses: Array


def draw_steps(counts: Sequence[int], seed: int) -> Array:
    """Return the `STEPS` steps of each response at which a trace is fitted, (N, B).

    They lie at random in equal parts of the response, so that every position is met whatever form
    the responses have. A response of fewer tokens has some steps twice; so each counts alike.
    """
    rng = np.random.default_rng(seed)
    parts_NB = np.arange(STEPS) + rng.random((len(counts), STEPS))
    step_NB: Array = (parts_NB * np.asarray(counts)[:, None] / STEPS).astype(np.int32)
    return step_NB


def fit_trace(
    fit: Fit, along: Steps, labels_N: Array, groups_N: Sequence[Hashable], *, seed: int = 0
) -> TraceFit:
    """Fit c along the way: logistic regression of the final grade on what is known at each step.

    Readings are those of rows that have not seen the response's question.

    Args:
        fit: the read-out, on the same responses.
        along: steps of each response.
        labels_N: 1 or True where it is right.
        groups_N: its question.
        seed: seed of the folds.
    """
    known_MF = along.features(_held_out(along.at_NBD, fit), _held_out(along.mean_NBD, fit))
    width = along.step_NB.shape[1]
    groups_M = [group for group in groups_N for _ in range(width)]
    made = fit_logistic([known_MF], np.repeat(labels_N, width), groups_M, seed=seed)
    (weights_F,), center_F = made.weights, known_MF.mean(0)
    trace = Trace(
        tuple(weights_F.tolist()),
        tuple(center_F.tolist()),
        float(made.bias + weights_F @ center_F),
        low=tuple(known_MF.min(0).tolist()),
        high=tuple(known_MF.max(0).tolist()),
        limit=math.log(len(along.step_NB) + 1),
    )
    return TraceFit(trace, made.losses.reshape(-1, width).mean(1))


def _held_out(states_NBD: Array, fit: Fit) -> Array:
    """Return the readings of states, (N, B), by rows that have not seen the response's question.

    States have much in common, so the rows of each fold put all readings at another level: they
    are moved and stretched to the mean and the spread of the readings by the rows that ship.
    """
    read_NB = states_NBD @ fit.weights_D
    read_NBK = states_NBD @ fit.held_out_KD.T
    spread_K = np.maximum(read_NBK.std((0, 1)), 1e-12)
    read_NBK = (read_NBK - read_NBK.mean((0, 1))) / spread_K * read_NB.std() + read_NB.mean()
    found_NB: Array = np.take_along_axis(read_NBK, fit.fold_N[:, None, None], 2)[..., 0]
    return found_NB
