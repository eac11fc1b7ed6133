"""Coroutines on an event loop in another thread: who gives up waits for its own work alone."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError

import pytest

from grace.engines.http.background import Background, Calls


@pytest.fixture
def background() -> Iterator[Background]:
    made = Background("test")
    yield made
    made.close()


def in_thread(calls: Calls, coroutine: object) -> threading.Thread:
    def run() -> None:
        with pytest.raises(CancelledError):
            calls.run(coroutine)  # type: ignore[arg-type]

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def test_giving_up_waits_for_ones_own_work_and_for_nobody_elses(background: Background) -> None:
    others_run, mine_runs, ended = threading.Event(), threading.Event(), threading.Event()

    async def other() -> None:
        task = asyncio.current_task()
        assert task
        task.cancel()  # as anyio does to a task that has connected
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            others_run.set()
        await asyncio.sleep(60)

    async def own() -> None:
        mine_runs.set()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.1)
            ended.set()

    others, mine = Calls(background), Calls(background)
    waiting = [in_thread(others, other()), in_thread(mine, own())]
    assert others_run.wait(30) and mine_runs.wait(30)
    giving_up = threading.Thread(target=mine.cancel, daemon=True)
    giving_up.start()
    giving_up.join(10)
    assert not giving_up.is_alive()
    assert ended.is_set()
    others.cancel()
    for thread in waiting:
        thread.join(30)
        assert not thread.is_alive()


def test_work_that_has_not_begun_is_given_up_as_well(background: Background) -> None:
    ended, calls = threading.Event(), Calls(background)

    async def own() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.1)
            ended.set()

    background.loop.call_soon_threadsafe(time.sleep, 0.5)
    waiting = in_thread(calls, own())
    while not calls._waiting:
        time.sleep(0.01)
    calls.cancel()
    assert ended.is_set()
    waiting.join(30)
    assert not waiting.is_alive()
