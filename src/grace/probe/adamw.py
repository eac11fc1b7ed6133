"""Linear probes trained by AdamW on squared error, as ActCab trains them; several at once.

Shapes: N rows, D features, C probes, B rows of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from grace.probe.rows import Array, Probe, sigmoid, spread


def fit_adamw(
    features_ND: Array,
    label_N: Array,
    seed: int,
    *,
    learning_rate: float = 1e-5,
    epochs: int = 2,
    batch_size: int = 128,
    weight_decay: float = 0.01,
) -> Probe:
    """Minimise the mean squared error on standardised features, from zero weights.

    The defaults are ActCab's published values. On few rows they barely move the weights.
    Source: ActCab, `src/train_ICL_K_fold_seq_avg.py`; here with a bias and without a sigmoid,
    as in arXiv 2509.09438 section 3.2.2.
    """
    mean_D, scale_D = features_ND.mean(axis=0, dtype=np.float64), spread(features_ND)
    rows_ND = np.pad((features_ND - mean_D) / scale_D, ((0, 0), (0, 1)), constant_values=1.0)
    start = float(label_N.mean())
    (weights_D,) = train_probes(
        rows_ND,
        (label_N - start)[:, None],
        [learning_rate],
        [epochs],
        squash=False,
        batch_size=batch_size,
        weight_decay=weight_decay,
        seed=seed,
    )
    return Probe(weights_D[:-1], start + float(weights_D[-1]), mean_D, scale_D)


def train_probes(
    features_ND: Array,
    labels_NC: Array,
    learning_rates: Sequence[float],
    epochs: Sequence[int],
    *,
    squash: bool = True,
    batch_size: int = 128,
    weight_decay: float = 0.01,
    seed: int = 0,
) -> Array:
    """Train C probes at once, each with its own labels, learning rate and epochs; return (C, D).

    All start from zero and see the same batches, so each comes out as it would alone. For a bias,
    add a feature that is always 1. With `squash` the output of a probe is a sigmoid.
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
            said_BC = batch_BD @ weights_CD[left].T
            p_BC = sigmoid(said_BC) if squash else said_BC
            slope_BC = (2 / len(rows_B)) * (p_BC - label_BC)
            slope_BC = slope_BC * p_BC * (1 - p_BC) if squash else slope_BC
            slope_CD = torch.from_numpy(slope_BC.astype(batch_BD.dtype).T @ batch_BD)
            for c, slope_D in zip(left, slope_CD, strict=True):
                rows[c].grad = slope_D
            optimizer.step()
    return weights_CD
