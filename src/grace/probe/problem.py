"""A grouped k-fold ridge problem: the data, and how a solution becomes a probe.

Shapes: N rows, D features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from grace.errors import UserInputError
from grace.probe.rows import Array, Probe, chunks, column_sums, spread

UNIT_ROWS = 4096
SMALL_CHUNK = 128  # rows that stay in a core's cache


class FoldFit(NamedTuple):
    """Fit on all rows outside the folds `held`, with penalty `lam` per training row."""

    held: tuple[int, ...]
    lam: float


@dataclass(frozen=True, slots=True)
class Problem:
    """The data with a common shift and unit per feature, which only serve accuracy."""

    features_ND: Array
    label_N: Array
    fold_N: Array
    folds: int
    standardise: bool
    prior_D: Array
    shift_D: Array
    unit_D: Array

    @property
    def width(self) -> int:
        """Return the number of features."""
        return int(self.features_ND.shape[1])

    def normal(self, rows_N: Array) -> Array:
        """Return a shifted and rescaled copy of some rows."""
        copy_ND = np.empty((len(rows_N), self.width), dtype=self.features_ND.dtype)
        for part in chunks(len(rows_N), SMALL_CHUNK):
            np.subtract(self.features_ND[rows_N[part]], self.shift_D, out=copy_ND[part])
            copy_ND[part] /= self.unit_D
        return copy_ND

    def scale(self, variance_D: Array) -> Array:
        """Return what to divide normal features by, given their variance in the training rows."""
        if not self.standardise:
            return self.prior_D / self.unit_D
        flat = variance_D <= 1e-10
        return np.where(flat, 1.0, np.sqrt(np.where(flat, 1.0, variance_D))) * self.prior_D

    def probe(
        self, weights_D: Array, bias: float, mean_D: Array, scale_D: Array, lam: float
    ) -> Probe:
        """Return the probe of a solution on centred and scaled normal features."""
        dtype = self.features_ND.dtype
        return Probe(
            weights=np.asarray(weights_D, dtype=dtype),
            bias=float(bias),
            mean=np.asarray(self.shift_D + mean_D * self.unit_D, dtype=dtype),
            scale=np.asarray(scale_D * self.unit_D, dtype=dtype),
            lam=lam,
        )


def make_problem(
    features_ND: Array,
    label_N: Array,
    fold_N: Array,
    *,
    standardise: bool,
    blocks: Sequence[int],
) -> Problem:
    """Prepare checked data.

    Raises:
        UserInputError: blocks that do not add up to the number of features.
    """
    width = features_ND.shape[1]
    if sum(blocks) not in (0, width):
        raise UserInputError(f"probe blocks {tuple(blocks)} do not add up to {width} features")
    prior_D = np.concatenate([np.full(size, size**0.5) for size in blocks] or [np.ones(width)])
    shift_D = column_sums(features_ND) / len(features_ND)
    sample_ND = features_ND[:: max(1, len(features_ND) // UNIT_ROWS)]
    dtype = features_ND.dtype
    return Problem(
        features_ND,
        label_N,
        fold_N,
        int(fold_N.max()) + 1,
        standardise,
        prior_D,
        shift_D.astype(dtype),
        spread(sample_ND, shift_D).astype(dtype),
    )
