"""The search for the penalties of the smallest held-out loss, on a grid."""

from __future__ import annotations

from collections.abc import Callable, Collection

PENALTIES = tuple(10.0 ** (power / 2) for power in range(-12, 5))  # 1e-6 to 1e2
FIRST = 0.1  # the penalty at which a search starts, unless a similar fit has found a better one
SHORTER = 1e-5  # smallest improvement of the log loss for which the search goes on

Penalties = tuple[float, ...]
"""The penalty of each block of features."""


def best_common(loss: Callable[[Penalties], float], blocks: int, first: float) -> Penalties:
    """Return the best penalties that are the same for all blocks; the search starts at `first`."""
    return _descend(loss, (first,) * blocks, range(blocks))


def best_separate(loss: Callable[[Penalties], float], blocks: int, first: float) -> Penalties:
    """Return the penalties after one round of coordinate descent from the best common one."""
    best = best_common(loss, blocks, first)
    for block in range(blocks):
        best = _descend(loss, best, (block,))
    return best


def _descend(
    loss: Callable[[Penalties], float], best: Penalties, blocks: Collection[int]
) -> Penalties:
    """Raise the penalty of some blocks while the loss falls; if it never does, lower it."""
    for step in (1, -1):
        moved = False
        while True:
            place = PENALTIES.index(best[min(blocks)]) + step
            if not 0 <= place < len(PENALTIES):
                break
            other = tuple(
                PENALTIES[place] if block in blocks else penalty
                for block, penalty in enumerate(best)
            )
            if loss(other) >= loss(best) - SHORTER:
                break
            best, moved = other, True
        if moved:
            break
    return best
