"""Testing thresholds from strict to loose until the first one fails.

Shapes: D independent draws of calibration data, G thresholds.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from grace.errors import UserInputError
from grace.thresholds.exact import Indices, difference_bound, least_points, p_value


def pick_accurate(
    accepted_DG: Indices,
    right_DG: Indices,
    n: int,
    target: float,
    delta: float,
    abstains: bool = True,
) -> Indices:
    """Return the index of the loosest threshold that is promised for each draw, -1 for none.

    A threshold that answers too few questions can never pass, however right they are. So when
    strict thresholds abstain, sequences start where enough questions are answered (a number that
    depends on n, target and delta alone): one early, one at half of the questions, each at half
    of delta. A sequence that fails at its first, smallest test then does not decide alone.
    """
    check_level(target, "target")
    check_level(delta, "delta")
    begins = starts(n, target, delta) if abstains else [0]
    passes_DG = p_value(right_DG, accepted_DG, target) <= delta / len(begins)
    picked = [walk(passes_DG, (accepted_DG < start).sum(axis=1)) for start in begins]
    loosest: Indices = np.max(picked, axis=0)
    return loosest


def pick_no_worse(
    better_DG: Indices, worse_DG: Indices, n: int, margin: float, delta: float
) -> Indices:
    """Return the index of the loosest threshold that is promised for each draw, -1 for none."""
    if not 0 <= margin < 1:
        raise UserInputError(f"the margin is {margin}; give a loss of accuracy in [0, 1)")
    check_level(delta, "delta")
    bound_DG = difference_bound(better_DG, worse_DG, n, margin, delta)
    return walk(bound_DG >= -margin, np.zeros(len(bound_DG), dtype=np.intp))


def walk(passes_DG: NDArray[np.bool_], first_D: Indices) -> Indices:
    """Return the last threshold before the first failure from `first_D` on, -1 for none."""
    untested_DG = np.arange(passes_DG.shape[1]) < first_D[:, None]
    fails_DG = ~(passes_DG | untested_DG)
    end_D = np.where(fails_DG.any(axis=1), fails_DG.argmax(axis=1), passes_DG.shape[1])
    return np.where(end_D > first_D, end_D - 1, -1)


def starts(n: int, target: float, delta: float) -> list[int]:
    """Return the numbers of answers at which sequences start: one or two, in ascending order."""
    half = max(least_points(target, delta), n // 2)
    early = _start_with_errors(target, delta / 2, half)
    return [early, half] if early < half else [half]


def _start_with_errors(target: float, delta: float, most: int) -> int:
    """Return the fewest answers, at most `most`, that pass with half of the errors allowed."""
    errors = 0
    for count in range(least_points(target, delta), most):
        if p_value(np.array(count - errors), np.array(count), target) <= delta:
            if errors >= count * (1 - target) / 2:
                return count
            errors += 1
    return most


def check_level(value: float, name: str) -> None:
    """Refuse a share that is not strictly between 0 and 1."""
    if not 0 < value < 1:
        raise UserInputError(f"{name} is {value}; give a share above 0 and below 1, e.g. 0.9")
