"""The short AdamW optimisation of a linear probe.

Shapes: N rows, D features, B rows of a batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grace.probe.rows import Array, Probe, spread


@dataclass(frozen=True, slots=True)
class AdamW:
    """The short optimisation of ActCab (its published values are the defaults).

    On few rows this barely moves the weights from zero; raise `learning_rate` or `epochs` then.
    Source: ActCab, `src/train_ICL_K_fold_seq_avg.py`; here with a bias and without a sigmoid,
    as in arXiv 2509.09438 section 3.2.2.
    """

    learning_rate: float = 1e-5
    epochs: int = 2
    batch_size: int = 128
    weight_decay: float = 0.01


def fit_adamw(features_ND: Array, label_N: Array, settings: AdamW, seed: int) -> Probe:
    """Minimise the mean squared error on standardised features, from zero weights."""
    import torch

    mean_D = features_ND.mean(axis=0, dtype=np.float64)
    scale_D = spread(features_ND, mean_D)
    rows_ND = (features_ND - mean_D) / scale_D
    count, width = rows_ND.shape
    weights_D, bias = np.zeros(width + 1), float(label_N.mean())
    trained = torch.from_numpy(weights_D)  # a view: a step changes the weights
    optimizer = torch.optim.AdamW(
        [trained], lr=settings.learning_rate, weight_decay=settings.weight_decay
    )
    rng = np.random.default_rng(seed)
    for _ in range(settings.epochs):
        order_N = rng.permutation(count)
        for start in range(0, count, settings.batch_size):
            batch_B = order_N[start : start + settings.batch_size]
            error_B = rows_ND[batch_B] @ weights_D[:-1] + weights_D[-1] + bias - label_N[batch_B]
            slope_D = np.append(error_B @ rows_ND[batch_B], error_B.sum()) * (2 / len(batch_B))
            trained.grad = torch.from_numpy(slope_D)
            optimizer.step()
    return Probe(weights_D[:-1], bias + float(weights_D[-1]), mean_D, scale_D, None)
