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
    mean_D = features_ND.mean(axis=0, dtype=np.float64)
    scale_D = spread(features_ND, mean_D)
    rows_ND = (features_ND - mean_D) / scale_D
    count, width = rows_ND.shape
    weights_D, bias = np.zeros(width + 1), float(label_N.mean())
    first_D, second_D, step = np.zeros(width + 1), np.zeros(width + 1), 0
    rng = np.random.default_rng(seed)
    for _ in range(settings.epochs):
        order_N = rng.permutation(count)
        for start in range(0, count, settings.batch_size):
            batch_B = order_N[start : start + settings.batch_size]
            step += 1
            error_B = rows_ND[batch_B] @ weights_D[:-1] + weights_D[-1] + bias - label_N[batch_B]
            slope_D = np.append(error_B @ rows_ND[batch_B], error_B.sum()) * (2 / len(batch_B))
            first_D += 0.1 * (slope_D - first_D)
            second_D += 0.001 * (slope_D**2 - second_D)
            weights_D *= 1 - settings.learning_rate * settings.weight_decay
            size_D = np.sqrt(second_D / (1 - 0.999**step)) + 1e-8
            weights_D -= settings.learning_rate * first_D / (1 - 0.9**step) / size_D
    return Probe(weights_D[:-1], bias + float(weights_D[-1]), mean_D, scale_D, None)
