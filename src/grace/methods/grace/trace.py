"""The fit of the trace (`grace.evidence.trace`), on a few steps of every training response.

Shapes: N responses, B steps of each, M = N * B, D hidden size, F features, Q readings of a step.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

from grace.evidence.trace import TRACE_FEATURES, Trace
from grace.methods.grace.fit import Fit, Steps
from grace.probe.logistic import fit_logistic
from grace.probe.rows import Array

STEPS = 8  # steps of each response on which a trace is fitted


class TraceFit(NamedTuple):
    """A trace, and the held-out log loss of each response (N,), averaged over its steps."""

    trace: Trace
    losses: Array


def draw_steps(counts: Sequence[int], seed: int) -> Array:
    """Draw `STEPS` steps of each response (N, B), one at random from each equal part of it."""
    rng = np.random.default_rng(seed)
    parts_NB = np.arange(STEPS) + rng.random((len(counts), STEPS))
    step_NB: Array = (parts_NB * np.asarray(counts)[:, None] / STEPS).astype(np.int32)
    return step_NB


def fit_trace(
    fit: Fit, along: Steps, labels_N: Array, groups_N: Sequence[Hashable], *, seed: int = 0
) -> TraceFit:
    """Fit the final grade on the features of steps; the readings have not seen the question."""
    found = [_held_out(state, fit, place) for place, state in enumerate(along.placed())]
    reading_NBQ = np.stack(found, axis=-1)
    # The sum of readings that share a level is little but the length: fit it without that level.
    level, length = float(reading_NBQ[..., -1].mean()), TRACE_FEATURES.index("length")
    centred_MF = along.features(reading_NBQ - level)
    width = along.step_NB.shape[1]
    groups_M = [group for group in groups_N for _ in range(width)]
    made = fit_logistic([centred_MF], np.repeat(labels_N, width), groups_M, seed=seed)
    (weights_F,) = made.weights
    bias = float(made.bias + weights_F @ centred_MF.mean(0))
    weights_F[length] -= level * weights_F[-1]
    found_MF = along.features(reading_NBQ)
    trace = Trace(
        tuple(weights_F.tolist()),
        tuple(found_MF.mean(0).tolist()),
        bias,
        low=tuple(found_MF.min(0).tolist()),
        high=tuple(found_MF.max(0).tolist()),
        limit=math.log(len(along.step_NB) + 1),
    )
    return TraceFit(trace, made.losses.reshape(-1, width).mean(1))


def _held_out(states_NBD: Array, fit: Fit, place: int) -> Array:
    """Return readings (N, B) by rows fitted without the question, aligned with those that ship."""
    read_NB = states_NBD @ fit.weights_QD[place]
    read_NBK = states_NBD @ fit.held_out_KQD[:, place].T
    spread_K = np.maximum(read_NBK.std((0, 1)), 1e-12)
    read_NBK = (read_NBK - read_NBK.mean((0, 1))) / spread_K * read_NB.std() + read_NB.mean()
    found_NB: Array = np.take_along_axis(read_NBK, fit.fold_N[:, None, None], 2)[..., 0]
    return found_NB
