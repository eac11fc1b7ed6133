"""Run coroutines on an event loop in a background thread, for code that is not asynchronous."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Collection, Coroutine, Generator, Iterable
from concurrent.futures import CancelledError, Future
from contextlib import aclosing
from queue import SimpleQueue
from typing import Any, TypeVar

Value = TypeVar("Value")


class Background:
    """An event loop in a daemon thread."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def start(self, coroutine: Coroutine[Any, Any, Value]) -> Future[Value]:
        """Start a coroutine on the loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def settle(self, coroutines: Collection[Coroutine[Any, Any, Any]]) -> None:
        """Wait until these coroutines have ended; does nothing on the loop's own thread."""
        if self.loop.is_running() and threading.current_thread() is not self._thread:
            self.start(_ended(coroutines)).result()

    def close(self) -> None:
        """Stop the loop; tasks still running on it never finish."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
            self.loop.close()


class Calls:
    """The coroutines that one caller waits for; another thread can cancel them all."""

    def __init__(self, background: Background) -> None:
        self._background = background
        self._lock = threading.Lock()
        self._waiting: dict[Future[Any], Coroutine[Any, Any, Any]] = {}
        self._cancelled = False

    def run(self, coroutine: Coroutine[Any, Any, Value]) -> Value:
        """Wait for a coroutine on the loop and return its value."""
        future = self._start(coroutine)
        try:
            return future.result()
        finally:
            self._end(future)

    def iterate(self, source: AsyncGenerator[Value, None]) -> Generator[Value, None, None]:
        """Yield the values of a source; closing this closes the source and waits for it."""
        arrived: SimpleQueue[tuple[Value, ...]] = SimpleQueue()

        async def pump() -> None:
            async with aclosing(source):
                async for value in source:
                    arrived.put((value,))

        future = self._start(pump())
        future.add_done_callback(lambda _: arrived.put(()))
        try:
            while item := arrived.get():
                yield item[0]
            future.result()
        finally:
            self._end(future)

    def cancel(self) -> None:
        """Cancel all present and future coroutines; return once they have ended."""
        with self._lock:
            self._cancelled = True
            waiting = dict(self._waiting)
        if cancelled := [waiting[future] for future in waiting if future.cancel()]:
            self._background.settle(cancelled)

    def _start(self, coroutine: Coroutine[Any, Any, Value]) -> Future[Value]:
        with self._lock:
            if self._cancelled:
                coroutine.close()
                raise CancelledError
            future = self._background.start(coroutine)
            self._waiting[future] = coroutine
            return future

    def _end(self, future: Future[Any]) -> None:
        with self._lock:
            coroutine = self._waiting.pop(future)
        if future.cancel():
            self._background.settle([coroutine])


async def _ended(coroutines: Collection[Coroutine[Any, Any, Any]]) -> None:
    """Return once no task runs one of these coroutines."""
    if tasks := [task for task in asyncio.all_tasks() if task.get_coro() in coroutines]:
        await asyncio.wait(tasks)


async def as_finished(
    coroutines: Iterable[Coroutine[Any, Any, Value]],
) -> AsyncGenerator[Value, None]:
    """Yield the values of coroutines as they finish; closing this cancels the rest."""
    running = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        for done in asyncio.as_completed(running):
            yield await done
    finally:
        await _cancel(running)


async def in_order(
    coroutines: Iterable[Coroutine[Any, Any, Value]], ahead: int
) -> AsyncGenerator[Value, None]:
    """Yield the values of coroutines in order, `ahead` of them running; closing cancels these."""
    running: deque[asyncio.Task[Value]] = deque()
    try:
        for coroutine in coroutines:
            running.append(asyncio.ensure_future(coroutine))
            if len(running) >= ahead:
                yield await running.popleft()
        while running:
            yield await running.popleft()
    finally:
        await _cancel(running)


async def _cancel(tasks: Collection[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    # asyncio logs an exception that nobody retrieves.
    await asyncio.gather(*tasks, return_exceptions=True)
