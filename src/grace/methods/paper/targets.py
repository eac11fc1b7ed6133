"""Calibration targets of responses, and the balancing of training examples by target.

Shapes: N responses, M bins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grace.metrics.kernels import bin_index

Array = NDArray[Any]
TargetKind = Literal["bins", "scores"]
BalanceKind = Literal["none", "cap"]
INTERVALS = 10  # of the target, over which examples are balanced
FEW = 20  # responses in a bin, below which its accuracy is uncertain


class BinRow(NamedTuple):
    """One row of the table of targets; `accuracy` is None for an empty bin."""

    bin: int
    low: float
    high: float
    n: int
    accuracy: float | None


class Targets(NamedTuple):
    """Bin and target of every response (N,), the table of bins, and warnings about small bins."""

    bins: Array
    targets: Array
    table: list[BinRow]
    warnings: list[str]


def make_targets(
    scores_N: Array,
    labels_N: Array,
    *,
    kind: TargetKind = "bins",
    bins: int = 10,
) -> Targets:
    """Turn probe scores into targets.

    Scores are clipped to [0, 1] and fall into `bins` bins of equal width, the last one closed.
    With `kind="bins"` the target is the accuracy of the bin, with "scores" (GrACE-Disc) the clipped
    score; bins and table are the same for both.

    Source: arXiv 2509.09438 section 3.2.2.
    """
    clipped_N = np.clip(scores_N, 0.0, 1.0)
    bin_N = bin_index(clipped_N, bins)
    count_M = np.bincount(bin_N, minlength=bins)
    right_M = np.bincount(bin_N, weights=labels_N, minlength=bins)
    accuracy_M = right_M / np.maximum(count_M, 1)
    rows = [
        BinRow(m, m / bins, (m + 1) / bins, int(n), float(accuracy_M[m]) if n else None)
        for m, n in enumerate(count_M)
    ]
    target_N = accuracy_M[bin_N] if kind == "bins" else clipped_N
    warnings = _small_bins(rows) if kind == "bins" else []
    return Targets(bin_N, target_N, rows, warnings)


def _small_bins(rows: Sequence[BinRow]) -> list[str]:
    small = [row for row in rows if 0 < row.n < FEW]
    if not small:
        return []
    named = ", ".join(
        f"{row.low:.2f}-{row.high:.2f}: {row.accuracy:.2f} of {row.n}" for row in small
    )
    return [
        f"{len(small)} of {len(rows)} target bins hold fewer than {FEW} responses, so their "
        f"accuracy is uncertain ({named}); use more questions or lower paper.bins"
    ]


def balance(target_N: Array, kind: BalanceKind, *, seed: int = 0) -> Array:
    """Return the examples to train on; `cap` keeps the mean size of the intervals of each."""
    if kind == "none":
        return np.arange(len(target_N))
    interval_N = bin_index(target_N, INTERVALS)
    size_M = np.bincount(interval_N, minlength=INTERVALS)
    cap = math.ceil(len(target_N) / int((size_M > 0).sum()))
    rng = np.random.default_rng(seed)
    kept = [rng.permutation(np.flatnonzero(interval_N == m))[:cap] for m in np.flatnonzero(size_M)]
    return np.sort(np.concatenate(kept))
