"""Rating only the responses that ended: one that was cut has no value, whatever rates it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from grace.estimators import Samples, Values


def rate_ended(samples: Samples, rate: Callable[[list[int]], Iterable[float | None]]) -> Values:
    """Return the values that `rate` gives the rows it is called with, None for cut responses.

    `rate` is called once, with the rows of the responses that ended, if there are any.
    """
    rows = ended_rows(samples)
    values: Values = [None] * len(samples.responses)
    for row, value in zip(rows, rate(rows) if rows else [], strict=True):
        values[row] = value
    return values


def ended_rows(samples: Samples) -> list[int]:
    """Return the rows of the responses that ended."""
    return [i for i, r in enumerate(samples.responses) if r.finish_reason == "stop"]
