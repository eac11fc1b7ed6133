"""How low the confidence of a sample may fall before it is aborted, with a guarantee.

Shapes: N right samples, one per question; G thresholds, low to high.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from grace.thresholds.binomial import least_points, lower_bound, p_value
from grace.thresholds.guarantees import GRID, check_level, walk

DROPS = GRID[::-1]  # the thresholds that are tried: the first drops nothing


@dataclass(frozen=True, slots=True)
class DropGuarantee:
    """At most `alpha` of the right samples are dropped below `drop`, but with probability `delta`.

    `drop` is 0 where nothing can be dropped. Of `n` right samples of calibration questions, one of
    each, `dropped` were, and `bound` is the Clopper-Pearson upper bound of their share.
    """

    drop: float
    alpha: float
    delta: float
    n: int
    dropped: int
    bound: float

    def __str__(self) -> str:
        if self.drop:
            return (
                f"samples below {self.drop:g} are dropped: at most {self.alpha:.1%} of the right "
                f"ones with probability {1 - self.delta:.1%} ({self.dropped} of {self.n} were)"
            )
        needed = least_points(1 - self.alpha, self.delta)
        return (
            f"no sample is dropped: {self.n} right samples cannot show that at most "
            f"{self.alpha:.1%} of them would be" + (f" ({needed} could)" if self.n < needed else "")
        )


def few_dropped(lowest_N: ArrayLike, alpha: float, delta: float = 0.05) -> DropGuarantee:
    """Choose the largest threshold that drops few right samples.

    Thresholds are tested from low to high, each with an exact binomial test of "more than alpha of
    the right samples are dropped"; the first that cannot be rejected ends the sequence.

    Args:
        lowest_N: the lowest confidence along each right sample, one sample per question.
        alpha: accepted share of right samples that are dropped, in (0, 1).
        delta: accepted probability that more are, in (0, 1).

    Raises:
        UserInputError: an impossible alpha or delta.
    """
    check_level(alpha, "--drop")
    check_level(delta, "delta")
    low_N = np.sort(np.asarray(lowest_N, dtype=np.float64))
    dropped_G = np.searchsorted(low_N, DROPS, side="left")
    passes_G = p_value(len(low_N) - dropped_G, np.full(len(DROPS), len(low_N)), 1 - alpha) <= delta
    at = int(max(walk(passes_G[None], np.zeros(1, dtype=np.intp))[0], 0))
    dropped = int(dropped_G[at])
    bound = 1 - float(lower_bound(len(low_N) - dropped, len(low_N), delta)) if len(low_N) else 1.0
    return DropGuarantee(float(DROPS[at]), alpha, delta, len(low_N), dropped, bound)
