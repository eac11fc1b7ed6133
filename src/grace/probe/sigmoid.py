"""Linear probes with a sigmoid, trained by AdamW on squared error; several recipes at once.

Shapes: N rows, D features, C probes, B rows of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from grace.probe.rows import Array


def sigmoid(logit: Array) -> Array:
    """Return 1 / (1 + exp(-x)), without overflow."""
    value: Array = 0.5 * (1 + np.tanh(0.5 * logit))
    return value


def fit_sigmoid_probes(
    features_ND: Array,
    labels_NC: Array,
    learning_rates: Sequence[float],
    epochs: Sequence[int],
    *,
    batch_size: int = 128,
    weight_decay: float = 0.01,
    start_D: Array | None = None,
    seed: int = 0,
) -> Array:
    """Return the weights of C probes, each with its own labels, learning rate and epochs, (C, D).

    All see the same batches, so a probe comes out as it would alone. `start_D` are the first
    weights, zero by default. For an offset, add a feature that is always 1.
    """
    count, width = features_ND.shape
    first_D = np.zeros(width) if start_D is None else start_D
    done_CD = np.tile(first_D, (len(epochs), 1)).astype(features_ND.dtype)
    left = np.arange(len(epochs))  # probes that are not done; the others cost no more
    optimizer = AdamW(done_CD.copy(), np.array(learning_rates)[:, None], weight_decay)
    rng = np.random.default_rng(seed)
    for epoch in range(1, max(epochs) + 1):
        order_N = rng.permutation(count)
        for first in range(0, count, batch_size):
            rows_B = order_N[first : first + batch_size]
            batch_BD, label_BC = features_ND[rows_B], labels_NC[rows_B[:, None], left]
            p_BC = sigmoid(batch_BD @ optimizer.weights_CD.T)
            slope_BC = (2 / len(rows_B)) * (p_BC - label_BC) * p_BC * (1 - p_BC)
            optimizer.step(slope_BC.astype(batch_BD.dtype).T @ batch_BD)
        ended = np.array(epochs)[left] == epoch
        done_CD[left[ended]] = optimizer.weights_CD[ended]
        optimizer.keep(~ended)
        left = left[~ended]
    return done_CD


@dataclass(slots=True)
class AdamW:
    """AdamW as in torch, one learning rate per row; changes `weights_CD` in place."""

    weights_CD: Array
    rates_C1: Array
    weight_decay: float
    steps: int = 0
    first_CD: Array = field(init=False)
    second_CD: Array = field(init=False)

    def __post_init__(self) -> None:
        """Begin with moments of zero, in the precision of the weights."""
        self.rates_C1 = self.rates_C1.astype(self.weights_CD.dtype)
        self.first_CD = np.zeros_like(self.weights_CD)
        self.second_CD = np.zeros_like(self.weights_CD)

    def keep(self, kept_C: Array) -> None:
        """Go on with some of the rows only."""
        self.weights_CD, self.rates_C1 = self.weights_CD[kept_C], self.rates_C1[kept_C]
        self.first_CD, self.second_CD = self.first_CD[kept_C], self.second_CD[kept_C]

    def step(self, slope_CD: Array) -> None:
        """Take one step against the slope."""
        self.steps += 1
        self.first_CD += 0.1 * (slope_CD - self.first_CD)
        self.second_CD += 0.001 * (slope_CD**2 - self.second_CD)
        size_CD = np.sqrt(self.second_CD / (1 - 0.999**self.steps)) + 1e-8
        self.weights_CD *= 1 - self.rates_C1 * self.weight_decay
        self.weights_CD -= self.rates_C1 * (self.first_CD / (1 - 0.9**self.steps)) / size_CD
