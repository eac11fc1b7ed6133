"""Fitted rows as bfloat16 numbers, so that an engine in half precision does not round them.

To the nearest number, every entry of a row is off by a little, and over the shared direction of a
model's states these errors add up to the same shift for every answer (0.19 in the log-odds of c on
SmolLM2). So each entry is rounded up or down such that the errors cancel over the training states.
Numbers of bfloat16 are numbers of float16 and float32, too.

Shapes: N responses, D hidden size, Q readings of a step, E = Q + 1 rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from grace.probe.rows import Array

PASSES = 3  # over the entries of a row; the errors hardly change after the first
RIDGE = 0.1  # weight of the entries' own errors, relative to that of the mean reading's
MOST = 2000  # responses whose states are looked at


def round_rows(rows_ED: Array, states: Sequence[Array]) -> Array:
    """Round rows to bfloat16 such that their readings change as little as possible.

    The last row goes to the nearest numbers. Each of the others then starts there, and its entries
    move to the neighbour on the other side of the exact value, one after the other, where that
    lowers the mean squared error of the reading, the row minus the last one times a state.

    Args:
        rows_ED: the rows of the tokens that are read, that of `<NOC>` last.
        states: the states (N, D) that each of the others is read at.

    Returns:
        The rounded rows, float32.
    """
    *read, base_D = np.asarray(rows_ED, dtype=np.float64)
    rounded_D, every = _neighbours(base_D)[0], math.ceil(len(states[0]) / MOST)
    pairs = zip(read, states, strict=True)
    rows = [_rounded(row_D, state_ND[::every], rounded_D - base_D) for row_D, state_ND in pairs]
    return np.stack([*rows, rounded_D]).astype(np.float32)


def _rounded(row_D: Array, state_ND: Array, base_error_D: Array) -> Array:
    state_DN = np.ascontiguousarray(state_ND.T, dtype=np.float64)
    square_D = (state_DN**2).sum(1)
    own = RIDGE * square_D.mean()
    value_D, other_D = _neighbours(row_D)
    error_N = (value_D - row_D - base_error_D) @ state_DN
    for place in np.tile(np.arange(len(row_D)), PASSES):
        step = other_D[place] - value_D[place]
        both = other_D[place] + value_D[place] - 2 * row_D[place]
        change = 2 * error_N @ state_DN[place] + step * square_D[place] + own * both
        if step * change < 0:
            error_N += step * state_DN[place]
            value_D[place], other_D[place] = other_D[place], value_D[place]
    return value_D


def _neighbours(row_D: Array) -> tuple[Array, Array]:
    """Return the nearest bfloat16 numbers, and those on the other side of the exact values."""
    bits_D = row_D.astype(np.float32).view(np.uint32) & 0xFFFF0000  # bfloat16 is its upper half
    lower_D, upper_D = (
        bits.view(np.float32).astype(np.float64) for bits in (bits_D, bits_D + 0x10000)
    )
    near = np.abs(lower_D - row_D) <= np.abs(upper_D - row_D)
    return np.where(near, lower_D, upper_D), np.where(near, upper_D, lower_D)
