"""One caller's use of a model: it can be given up, which hangs up on a server."""

from __future__ import annotations

import asyncio
import copy
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from grace.engines import Ids, Rating


class Using(Protocol):
    """A model, as far as a call knows it: it uses an engine."""

    engine: Any


UNRATED = Rating(None, None, {})  # a response that says nothing
Used = TypeVar("Used", bound=Using)
Value = TypeVar("Value")


def for_caller(model: Used, deadline: float = math.inf) -> tuple[Used, Callable[[], None]]:
    """Return the model for one caller until a deadline, and a function that hangs up."""
    call = getattr(model.engine, "caller", None)
    if call is None:
        return model, lambda: None
    mine, engine = copy.copy(model), call(deadline)
    mine.engine = engine
    return mine, engine.cancel


def rated(
    rate: Callable[[list[Ids], list[Ids]], list[Value]],
    prompts: Sequence[Ids],
    responses: Sequence[Ids],
    texts: Sequence[str],
    blank: Value,
) -> list[Value]:
    """Return what `rate` gives the responses that say something, and `blank` for the others."""
    rows = [row for row, text in enumerate(texts) if text.strip()]
    values = rate([prompts[row] for row in rows], [responses[row] for row in rows]) if rows else []
    found = dict(zip(rows, values, strict=True))
    return [found.get(row, blank) for row in range(len(texts))]


async def in_thread(
    model: Used, threads: ThreadPoolExecutor, work: Callable[[Used], Value]
) -> Value:
    """Run work in another thread and return its result; if cancelled, hang up on the server."""
    mine, hang_up = for_caller(model)
    try:
        return await asyncio.wrap_future(threads.submit(work, mine))
    except asyncio.CancelledError:
        hang_up()
        raise
