"""A request's end of a job: events from its thread, until the client leaves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from starlette.requests import Request

from grace.server.errors import ApiError, as_api_error
from grace.server.jobs.backends import Backend
from grace.server.jobs.queue import Emit, Failed, Finished, Job

LONG = 2**15  # bytes of a body; longer ones are prepared one at a time, and hold up no others


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


class Line:
    """All requests that wait for an answer.

    A job is prepared on a thread of its own kind, so that text is tokenised beside the model and
    not in its way; then the backend queues it.
    """

    def __init__(self, backend: Backend, timeout_s: float) -> None:
        self._backend, self._timeout_s = backend, timeout_s
        self._short = ThreadPoolExecutor(2, "grace-text")
        self._long = ThreadPoolExecutor(1, "grace-long-text")
        self._waiting: set[Emit] = set()

    def end(self) -> None:
        """Tell everybody who waits that the server is shutting down."""
        for emit in list(self._waiting):
            emit(Failed(ApiError(503, "the server is shutting down; try another one")))

    def close(self) -> None:
        """Take no more jobs, and end those that run."""
        for threads in (self._short, self._long):
            threads.shutdown(wait=False, cancel_futures=True)
        self._backend.queue.close()

    async def events(
        self, make: Callable[[Emit], Job], request: Request
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

        deadline = loop.time() + self._timeout_s
        job = make(emit)
        lane = self._long if len(await request.body()) > LONG else self._short
        gone = asyncio.ensure_future(_disconnected(request))
        self._waiting.add(emit)
        started = asyncio.ensure_future(self._start(job, lane))
        try:
            while True:
                event = await self._next(arrived, gone, deadline - loop.time())
                if isinstance(event, Failed):
                    raise as_api_error(event.error)
                yield event
                if isinstance(event, Finished):
                    return
        finally:
            self._waiting.discard(emit)
            for task in (gone, started):
                task.cancel()
            job.cancel()

    async def _start(self, job: Job, lane: ThreadPoolExecutor) -> None:
        """Prepare a job and queue it; what is wrong with it is its last event."""
        try:
            await asyncio.get_running_loop().run_in_executor(lane, job.prepare)
            self._backend.queue.submit(job)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # the server outlives even a SystemExit
            job.emit(Failed(error))

    async def _next(
        self, arrived: asyncio.Queue[Any], gone: asyncio.Future[None], left_s: float
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
            504,
            f"not done after {self._timeout_s:g} s; ask for fewer tokens or samples",
            code="timeout",
        )


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
