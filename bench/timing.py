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


def timed(work: Callable[[], Any]) -> Timed:
    """Do some work and measure its seconds."""
    processor, clock = time.process_time(), time.perf_counter()
    result = work()
    return Timed(time.process_time() - processor, time.perf_counter() - clock, result)
