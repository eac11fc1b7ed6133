"""A job's events as one JSON object, or as a stream of server-sent events."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing
from typing import Any

from grace.server.completing import Ended, Piece
from grace.server.counters import Counters
from grace.server.errors import as_api_error
from grace.server.jobs import Finished
from grace.server.line import ClientGone
from grace.server.replies import Json, Reply, usage, voted
from grace.server.voting import Voted

log = logging.getLogger(__name__)
Extra = Callable[[str, Ended], Json]
"""Makes what `grace` says besides, from the text and the end of the first choice."""


class Answer:
    """One answer in the making: what has arrived of it so far."""

    def __init__(self, reply: Reply, counters: Counters, extra: Extra | None) -> None:
        self._reply, self._counters, self._extra = reply, counters, extra
        self._pieces: dict[int, list[Piece]] = {}
        self._ends: dict[int, Ended] = {}

    async def whole(self, arriving: AsyncGenerator[Any, None]) -> Json:
        """Wait for everything and return it."""
        finished = Finished()
        async with aclosing(arriving):
            async for event in arriving:
                self._take(event)
                if isinstance(event, Finished):
                    finished = event
        choices = [
            self._reply.complete(ended, self._pieces.get(choice, []))
            for choice, ended in sorted(self._ends.items())
        ]
        return self._reply.whole(choices, usage(finished), **self._said(finished))

    async def lines(
        self, first: Any, arriving: AsyncGenerator[Any, None], *, usage_wanted: bool
    ) -> AsyncIterator[bytes]:
        """Yield server-sent events as things arrive; an error is the last event."""
        later: Json = {"usage": None} if usage_wanted else {}  # as OpenAI does until the end
        try:
            async with aclosing(arriving):
                for chunk in self._chunks(first, usage_wanted):
                    yield _line(later | chunk)
                async for event in arriving:
                    for chunk in self._chunks(event, usage_wanted):
                        yield _line(later | chunk)
        except ClientGone:
            return
        except Exception as error:
            told = as_api_error(error)
            if told is not error:
                log.exception("a stream failed")
            yield _line(told.body)
        yield b"data: [DONE]\n\n"

    def _chunks(self, event: Any, usage_wanted: bool) -> Iterator[Json]:
        if isinstance(event, Piece | Ended):
            if self._reply.chat and event.choice not in self._pieces:
                yield self._reply.opening(event.choice)
            self._take(event)
            if isinstance(event, Piece):
                yield self._reply.piece(event)
            else:
                yield self._reply.ending(event)
        elif isinstance(event, Voted):
            yield self._reply.chunk([], grace=voted(event))
        elif isinstance(event, Finished):
            self._take(event)
            if said := self._said(event):
                yield self._reply.chunk([], **said)
            if usage_wanted:
                yield self._reply.chunk([], usage=usage(event))

    def _take(self, event: Any) -> None:
        if isinstance(event, Piece):
            self._pieces.setdefault(event.choice, []).append(event)
        elif isinstance(event, Ended):
            self._pieces.setdefault(event.choice, [])
            self._ends[event.choice] = event
            self._counters.rated(event.confidence)
        elif isinstance(event, Finished):
            self._counters.count(event)

    def _said(self, finished: Finished) -> Json:
        if self._extra is None:
            return {}
        text = "".join(piece.text for piece in self._pieces.get(0, []))
        return {"grace": (finished.value or {}) | self._extra(text, self._ends[0])}


def _line(value: Json) -> bytes:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n".encode()
