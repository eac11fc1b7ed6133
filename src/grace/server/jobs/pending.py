"""A request waits for its job: events come from the job's thread until the client leaves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from starlette.requests import Request

from grace.server.errors import ApiError, as_api_error, shutting_down
from grace.server.jobs.backends import Backend
from grace.server.jobs.queue import Emit, Failed, Finished, Job

LONG = 2**15  # bytes of a body; longer ones are prepared one at a time and hold up no others


class ClientGone(Exception):
    """The client has closed the connection."""


class Pending:
    """All requests that wait for an answer; their text is tokenised while the model computes."""

    def __init__(self, backend: Backend, timeout_s: float) -> None:
        self._backend, self._timeout_s = backend, timeout_s
        self._short = ThreadPoolExecutor(2, "grace-text")
        self._long = ThreadPoolExecutor(1, "grace-long-text")
        self._waiting: set[Emit] = set()

    def end(self) -> None:
        """Tell all waiting requests that the server is shutting down."""
        for emit in list(self._waiting):
            emit(Failed(shutting_down()))

    def close(self) -> None:
        """Take no more jobs, and end those that run."""
        for threads in (self._short, self._long):
            threads.shutdown(wait=False, cancel_futures=True)
        self._backend.queue.close()

    async def events(self, job: Job, request: Request) -> AsyncGenerator[Any, None]:
        """Queue a job and yield its events, the last one a `Finished`; closing cancels the job."""
        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[Any] = asyncio.Queue()

        def emit(event: Any) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(arrived.put_nowait, event)

        async def watch() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            arrived.put_nowait(Failed(ClientGone()))

        job.emit = emit
        lane = self._long if len(await request.body()) > LONG else self._short
        timer = loop.call_later(self._timeout_s, arrived.put_nowait, Failed(self._too_slow()))
        tasks = [asyncio.ensure_future(watch()), asyncio.ensure_future(self._start(job, lane))]
        self._waiting.add(emit)
        event = None
        try:
            while True:
                event = await arrived.get()
                if isinstance(event, Failed):
                    gone = isinstance(event.error, ClientGone)
                    raise event.error if gone else as_api_error(event.error)
                yield event
                if isinstance(event, Finished):
                    return
        finally:
            del event  # an error that is raised here would hold itself by this frame
            self._waiting.discard(emit)
            timer.cancel()
            for task in tasks:
                task.cancel()
            job.cancel()

    async def _start(self, job: Job, lane: ThreadPoolExecutor) -> None:
        """Prepare a job and queue it; if it cannot be done, say so in its last event."""
        try:
            await asyncio.get_running_loop().run_in_executor(lane, job.prepare)
            self._backend.queue.submit(job)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # not even a SystemExit may end the server
            job.emit(Failed(error))

    def _too_slow(self) -> ApiError:
        text = f"not done after {self._timeout_s:g} s; ask for fewer tokens or samples"
        return ApiError(504, text, code="timeout")
