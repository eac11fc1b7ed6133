"""Fitted rows as bfloat16 numbers, so that no engine or export has to round them.

Rounded to the nearest number, every entry of a row is off by a little. Since a model's states share
a direction, these errors add up to the same shift for every answer: 0.19 in the log-odds of c on
SmolLM2 in bfloat16. Here each entry that is rounded makes up for the errors of those before it, as
GPTQ does for the weights of a whole model (Frantar et al. 2022, arXiv 2210.17323). bfloat16 numbers
are float16 and float32 numbers, too.

Shapes: N responses, D hidden size, Q readings of a step, E = Q + 1 rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from grace.probe.rows import Array

RIDGE = 0.01  # added to the mean square of every entry of the states, relative to their mean


def round_rows(rows_ED: Array, states: Sequence[Array]) -> Array:
    """Round rows to bfloat16 such that their readings change as little as possible.

    Args:
        rows_ED: the rows of the tokens that are read, that of `<NOC>` last.
        states: for each of the others the states (N, D) that it is read at.
    """
    *read, base_D = np.asarray(rows_ED, dtype=np.float64)
    rounded_D = _bfloat16(base_D)
    pairs = zip(read, states, strict=True)
    rows = [_rounded(row_D - base_D + rounded_D, state_ND) for row_D, state_ND in pairs]
    return np.stack([*rows, rounded_D]).astype(np.float32)


def _rounded(row_D: Array, state_ND: Array) -> Array:
    """Round the entries one after the other, the largest first, which have the largest errors."""
    from scipy.linalg import cholesky

    order_D = np.argsort(-np.abs(row_D))
    seen_ND = state_ND[:, order_D].astype(np.float64)
    gram_DD = seen_ND.T @ seen_ND / len(seen_ND)
    ridge = max(RIDGE * float(np.trace(gram_DD)) / len(gram_DD), 1e-12)
    gram_DD[np.diag_indices_from(gram_DD)] += ridge
    root_DD, left_D = cholesky(np.linalg.inv(gram_DD)), row_D[order_D]
    for place in range(len(left_D)):
        exact = left_D[place]
        left_D[place] = _bfloat16(exact)
        error = (exact - left_D[place]) / root_DD[place, place]
        left_D[place + 1 :] -= error * root_DD[place, place + 1 :]
    rounded_D = np.empty_like(left_D)
    rounded_D[order_D] = left_D
    return rounded_D


def _bfloat16(exact: Array) -> Array:
    """Return the nearest numbers of bfloat16, which is the upper half of float32."""
    bits = np.asarray(exact, dtype=np.float32).view(np.uint32)
    return ((bits + 0x8000) & 0xFFFF0000).view(np.float32).astype(np.float64)
