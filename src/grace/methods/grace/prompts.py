"""How far a prompt is from those that a fit has seen, by the state at its end.

The distance from a source is the mean squared deviation from the mean of its prompts, each number
in units of that source's own standard deviation: about 1 within the source. Of several sources the
nearest one counts.

Shapes: N answers, S sources, H numbers in a state, Q readings of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from grace.probe.rows import Array

USUAL = 0.95  # share of the prompts of the fit that are familiar
LEAST = 1e-3  # smallest standard deviation, relative to the largest one of the source


class Prompts(NamedTuple):
    """The prompts of the sources, and the distance up to which other prompts are familiar."""

    mean_SH: Array
    spread_SH: Array
    near: float
    own: tuple[tuple[int, Array], ...] = ()  # a block and rows (Q, H) of each source's own, if any


def describe(first_NH: Array, source_N: Sequence[str]) -> Prompts:
    """Describe the prompts of several sources; `near` is what most keep from their own."""
    names, place_N = np.unique(source_N, return_inverse=True)
    parts = [first_NH[place_N == place] for place in range(len(names))]
    mean_SH, spread_SH = (np.array(each) for each in zip(*map(_moments, parts), strict=True))
    own_N = distances(first_NH, mean_SH, spread_SH).min(0)
    return Prompts(mean_SH, spread_SH, float(np.quantile(own_N, USUAL)))


def distances(first_NH: Array, mean_SH: Array, spread_SH: Array) -> Array:
    """Return the distance of each prompt from every source (S, N)."""
    sources = zip(mean_SH, spread_SH, strict=True)
    return np.array([np.square((first_NH - mean) / spread).mean(1) for mean, spread in sources])


def _moments(part_NH: Array) -> tuple[Array, Array]:
    spread_H = part_NH.std(0, dtype=np.float64)
    return part_NH.mean(0, dtype=np.float64), np.maximum(spread_H, LEAST * (spread_H.max() or 1.0))
