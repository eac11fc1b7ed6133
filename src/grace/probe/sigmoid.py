"""Linear probes with a sigmoid, trained by AdamW on squared error; several recipes at once.

Shapes: N rows, D features, C probes, B rows of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence

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
    seed: int = 0,
) -> Array:
    """Return the weights of C probes, each with its own labels, learning rate and epochs, (C, D).

    All see the same batches, so a probe comes out as it would alone. The first weights are zero.
    For an offset, add a feature that is always 1.
    """
    import torch

    count, width = features_ND.shape
    weights_CD = np.zeros((len(epochs), width), features_ND.dtype)
    rows = list(torch.from_numpy(weights_CD))  # views: a step changes the matrix
    groups = [{"params": [row], "lr": rate} for row, rate in zip(rows, learning_rates, strict=True)]
    optimizer = torch.optim.AdamW(groups, weight_decay=weight_decay, fused=True)
    rng = np.random.default_rng(seed)
    for epoch in range(max(epochs)):
        left = [c for c, last in enumerate(epochs) if epoch < last]
        optimizer.zero_grad()  # a probe without a slope is done: the optimizer leaves it alone
        order_N = rng.permutation(count)
        for first in range(0, count, batch_size):
            rows_B = order_N[first : first + batch_size]
            batch_BD, label_BC = features_ND[rows_B], labels_NC[rows_B[:, None], left]
            p_BC = sigmoid(batch_BD @ weights_CD[left].T)
            slope_BC = (2 / len(rows_B)) * (p_BC - label_BC) * p_BC * (1 - p_BC)
            slope_CD = torch.from_numpy(slope_BC.astype(batch_BD.dtype).T @ batch_BD)
            for c, slope_D in zip(left, slope_CD, strict=True):
                rows[c].grad = slope_D
            optimizer.step()
    return weights_CD
