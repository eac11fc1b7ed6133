"""A model that one caller uses, who may give up: beside an event loop, or for a client."""

from __future__ import annotations

import asyncio
import copy
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from grace.model.answering import Model

Value = TypeVar("Value")


def caller(model: Model, deadline: float = math.inf) -> tuple[Model, Callable[[], None]]:
    """Return the model for one caller, and what makes it hang up on its server.

    The caller waits until the deadline at most (`time.monotonic`). A model in this process is the
    same for all callers, and goes on with what it has begun.
    """
    call = getattr(model.engine, "caller", None)
    if call is None:
        return model, lambda: None
    mine, engine = copy.copy(model), call(deadline)
    mine.engine = engine
    return mine, engine.cancel


async def aside(model: Model, threads: ThreadPoolExecutor, work: Callable[[Model], Value]) -> Value:
    """Return the result of work in another thread; cancelled, it hangs up on the server."""
    mine, hang_up = caller(model)
    try:
        return await asyncio.wrap_future(threads.submit(work, mine))
    except asyncio.CancelledError:
        hang_up()
        raise
