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

AT_ONCE = 256  # entries
SEEN = 2_000  # most answers whose states count
RIDGE = 0.01  # added to the mean square of every entry of the states, relative to their mean


def round_rows(rows_ED: Array, states: Sequence[Array]) -> Array:
    """Round rows, `<NOC>` last, to bfloat16 with the least change of their readings of `states`."""
    *read, base_D = np.asarray(rows_ED, dtype=np.float64)
    rounded_D = _bfloat16(base_D)
    pairs = zip(read, states, strict=True)
    rows = [_rounded(row_D - base_D + rounded_D, state_ND) for row_D, state_ND in pairs]
    return np.stack([*rows, rounded_D]).astype(np.float32)


def _rounded(row_D: Array, state_ND: Array) -> Array:
    """Round the entries one after the other, the largest first, which have the largest errors."""
    order_D, step = np.argsort(-np.abs(row_D)), -(-len(state_ND) // SEEN)
    seen_ND = state_ND[::step, order_D].astype(np.float64)
    ridge = max(RIDGE * float(np.square(seen_ND).sum()) / seen_ND.size, 1e-12)
    rounded_D = np.empty_like(row_D)
    within = _by_entries if seen_ND.shape[1] <= len(seen_ND) else _by_answers
    rounded_D[order_D] = within(row_D[order_D], seen_ND, ridge)
    return rounded_D


def _by_entries(row_D: Array, seen_ND: Array, ridge: float) -> Array:
    """Round all entries at once."""
    gram_DD = seen_ND.T @ seen_ND / len(seen_ND)
    gram_DD[np.diag_indices_from(gram_DD)] += ridge
    return row_D + _errors(row_D, gram_DD, np.zeros_like(row_D))


def _by_answers(row_D: Array, seen_ND: Array, ridge: float) -> Array:
    """Round `AT_ONCE` entries after the others, which make up for it by a ridge regression."""
    count, width = seen_ND.shape
    left_NN = seen_ND @ seen_ND.T
    left_NN[np.diag_indices_from(left_NN)] += count * ridge
    inverse_NN, error_N, rounded_D = np.linalg.inv(left_NN), np.zeros(count), row_D.copy()
    for start in range(0, width, AT_ONCE):
        part = np.s_[start : start + AT_ONCE]
        block_NB = seen_ND[:, part]
        solved_NB = inverse_NN @ block_NB
        rest_BB = np.linalg.inv(np.eye(block_NB.shape[1]) - block_NB.T @ solved_NB)
        error_B = _errors(row_D[part], rest_BB, -(solved_NB.T @ error_N))
        error_N += block_NB @ error_B
        rounded_D[part] += error_B
        inverse_NN += (solved_NB @ rest_BB) @ solved_NB.T
    return rounded_D


def _errors(exact_B: Array, cost_BB: Array, goal_B: Array) -> Array:
    """Round entries one after the other; return their errors, which cost least at the goal."""
    from scipy.linalg import cholesky

    root_BB = cholesky(cost_BB[::-1, ::-1], lower=True)[::-1, ::-1]  # its cost: root @ root.T
    by_entry_BB = np.ascontiguousarray(root_BB.T)
    off_B = np.zeros_like(exact_B)  # by how much the errors differ from the goal
    for place, exact in enumerate(exact_B):
        made_up = by_entry_BB[place, :place] @ off_B[:place] / by_entry_BB[place, place]
        error = _bfloat16(exact + goal_B[place] - made_up) - exact
        off_B[place] = error - goal_B[place]
    error_B: Array = off_B + goal_B
    return error_B


def _bfloat16(exact: Array) -> Array:
    """Return the nearest numbers of bfloat16, which is the upper half of float32."""
    bits = np.asarray(exact, dtype=np.float32).view(np.uint32)
    return ((bits + 0x8000) & 0xFFFF0000).view(np.float32).astype(np.float64)
