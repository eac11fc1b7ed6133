"""The time that some work takes, for the other benchmarks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple


class Timed(NamedTuple):
    """The result of some work and the seconds that it took."""

    processor: float  # of this process alone, so other programs cannot lengthen it
    clock: float
    result: Any


def in_turns(*sides: Callable[[], Any], rounds: int, warm: int = 1) -> list[list[Timed]]:
    """Do the work of each side once a round, and return what it took in each round, by side.

    The order changes from round to round, so that a drifting load is shared. The first `warm`
    rounds are not counted.
    """
    taken: list[list[Timed]] = [[] for _ in sides]
    for number in range(warm + rounds):
        order = list(zip(sides, taken, strict=True))
        for side, mine in order if number % 2 else reversed(order):
            mine.append(timed(side))
    return [mine[warm:] for mine in taken]


def timed(work: Callable[[], Any]) -> Timed:
    """Do some work and measure its seconds."""
    processor, clock = time.process_time(), time.perf_counter()
    result = work()
    return Timed(time.process_time() - processor, time.perf_counter() - clock, result)
