"""A request's end of a job: events from its thread, until the client leaves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Any

from starlette.requests import Request

from grace.server.backends import Backend
from grace.server.errors import ApiError, as_api_error
from grace.server.jobs import Emit, Failed, Finished, Job


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


async def events(
    backend: Backend, make: Callable[[Emit], Job], request: Request, timeout_s: float
) -> AsyncGenerator[Any, None]:
    """Queue a job and yield its events, the last one a `Finished`; closing cancels the job.

    Raises:
        ApiError: the queue is full, the job failed, or the time is over.
        ClientGone: the client has closed the connection.
    """
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[Any] = asyncio.Queue()

    def emit(event: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody is left
            loop.call_soon_threadsafe(arrived.put_nowait, event)

    deadline = loop.time() + timeout_s
    job = make(emit)
    backend.submit(job)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        while True:
            event = await _next(arrived, gone, deadline - loop.time(), timeout_s)
            if isinstance(event, Failed):
                raise as_api_error(event.error)
            yield event
            if isinstance(event, Finished):
                return
    finally:
        gone.cancel()
        job.cancel()


async def _next(
    arrived: asyncio.Queue[Any], gone: asyncio.Future[None], left_s: float, timeout_s: float
) -> Any:
    if not arrived.empty():
        return arrived.get_nowait()
    waiting = asyncio.ensure_future(arrived.get())
    try:
        await asyncio.wait(
            {waiting, gone}, timeout=max(left_s, 0), return_when=asyncio.FIRST_COMPLETED
        )
        if waiting.done():
            return waiting.result()
    finally:
        waiting.cancel()
    if gone.done():
        raise ClientGone
    raise ApiError(
        504, f"not done after {timeout_s:g} s; ask for fewer tokens or samples", code="timeout"
    )


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
