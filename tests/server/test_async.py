"""Many questions in flight from one event loop, in front of an upstream."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from live_server import Live

from fake_upstream import Behaviour, Server
from grace.errors import ModelError
from grace.model import Model
from grace.model.loading import connect

IN_FLIGHT = 32
QUESTIONS = [f"What is {number} and {number * 7}?" for number in range(IN_FLIGHT)]


@pytest.fixture
def behaviour(upstream: Server) -> Iterator[Behaviour]:
    upstream.behaviour = Behaviour()
    yield upstream.behaviour
    upstream.behaviour = Behaviour()


async def until(reached: Callable[[], bool]) -> None:
    """Wait for what comes in milliseconds; give up after a minute."""
    end = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


def test_a_server_that_computes_c_itself_is_no_upstream(live: Live, finished: Path):
    with pytest.raises(ModelError, match="ask it with any OpenAI client") as told:
        connect(live.url, finished / "run")
    assert "\n" not in str(told.value)


def test_many_questions_are_at_the_upstream_at_a_time(
    relayed: Model, tiny_model: Model, behaviour: Behaviour
):
    behaviour.gate = threading.Event()

    async def main() -> list[str]:
        asked = [asyncio.ensure_future(relayed.aask(question)) for question in QUESTIONS]
        await until(lambda: len(behaviour.requests) == IN_FLIGHT)
        assert behaviour.gate is not None
        behaviour.gate.set()
        return [reply.text for reply in await asyncio.gather(*asked)]

    assert asyncio.run(main()) == [reply.text for reply in tiny_model.ask(QUESTIONS)]


def test_votes_overlap_and_are_those_of_single_calls(relayed: Model, behaviour: Behaviour):
    how = {"strategy": "grace-sc", "budget": 2, "seed": 4}

    async def main() -> list[object]:
        return await asyncio.gather(*(relayed.avote(q, **how) for q in QUESTIONS[:4]))

    alone = [relayed.vote(question, **how) for question in QUESTIONS[:4]]  # type: ignore[call-overload]
    assert asyncio.run(main()) == alone
    assert relayed.vote(QUESTIONS[:4], **how) == alone  # type: ignore[call-overload]


def test_a_call_that_is_given_up_hangs_up(relayed: Model, behaviour: Behaviour):
    behaviour.gate = threading.Event()

    async def main() -> None:
        asked = asyncio.ensure_future(relayed.avote(QUESTIONS[0], budget=2, parallel=2))
        await until(lambda: len(behaviour.requests) == 2)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert behaviour.gate is not None
        behaviour.gate.set()
        await until(lambda: behaviour.left == 2)

    asyncio.run(main())
    assert relayed.ask(QUESTIONS[6]).text
