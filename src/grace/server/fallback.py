"""A bigger model on another server, which answers what this one is not sure of."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from grace.engines.http.upstream import Upstream, UpstreamError, choice_of, parsing
from grace.records import Message
from grace.server.counters import Counters
from grace.server.jobs.completion import Ended, Piece
from grace.server.jobs.queue import Finished
from grace.server.requests import ChatRequest
from grace.server.settings import FallbackSettings

log = logging.getLogger(__name__)
PASSED_ON = (
    "temperature",
    "top_p",
    "max_tokens",
    "max_completion_tokens",
    "stop",
    "seed",
    "response_format",
    "tools",
    "tool_choice",
)
"""Fields of a request that the other server gets as they are."""
RETRIES = 1


class Fallback:
    """Asks the other server where the confidence of an answer is below a threshold."""

    def __init__(
        self, settings: FallbackSettings, own_name: str, counters: Counters, timeout_s: float
    ) -> None:
        self._settings, self._own, self._counters = settings, own_name, counters
        self._timeout_s = timeout_s
        self._upstream = Upstream(
            settings.url, api_key=settings.api_key, timeout_s=timeout_s, retries=RETRIES
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._upstream.close()

    async def events(
        self, arriving: AsyncGenerator[Any, None], body: ChatRequest, messages: Sequence[Message]
    ) -> AsyncGenerator[Any, None]:
        """Yield the events of a job of one answer, or of the other model's; text waits for c."""
        deadline, held = time.monotonic() + self._timeout_s, list[Any]()
        async with aclosing(arriving):
            async for event in arriving:
                if isinstance(event, Finished):
                    async for late in self._decided(held, event, body, messages, deadline):
                        yield late
                elif isinstance(event, Piece | Ended):
                    held.append(event)
                else:
                    yield event

    async def _decided(
        self,
        held: Sequence[Any],
        finished: Finished,
        body: ChatRequest,
        messages: Sequence[Message],
        deadline: float,
    ) -> AsyncGenerator[Any, None]:
        ended = held[-1]
        told: dict[str, Any] = {"answered_by": self._own}
        outcome = "kept"
        if ended.confidence is None or ended.confidence < self._settings.below:
            try:
                text, reason, usage = await self._ask(body, messages, deadline)
            except UpstreamError as error:
                log.warning("fallback: %s", error)
                outcome, told["fallback_failed"] = "failed", error.message
            else:
                self._counters.cascade.labels("forwarded").inc()
                self._counters.count_answer(ended.confidence, ended.familiar)
                first = "".join(event.text for event in held if isinstance(event, Piece))
                told = {
                    "answered_by": self._settings.model,
                    "first": {"text": first, "confidence": ended.confidence},
                    "usage": usage,
                }
                yield Piece(0, text)
                yield Ended(0, reason, None, by_other=True)
                yield finished._replace(value=told)
                return
        self._counters.cascade.labels(outcome).inc()
        for event in held:
            yield event
        yield finished._replace(value=(finished.value or {}) | told)

    async def _ask(
        self, body: ChatRequest, messages: Sequence[Message], deadline: float
    ) -> tuple[str, Any, Any]:
        """Return the other model's text, why it ended, and its numbers of tokens."""
        asked = body.model_dump(by_alias=True, exclude_unset=True, include=set(PASSED_ON))
        asked |= {"model": self._settings.model, "messages": [*messages]}
        upstream = self._upstream.until(deadline)
        answer = await upstream.json("/v1/chat/completions", asked)
        with parsing("the fallback sent an answer in another form than OpenAI's"):
            choice = choice_of(answer)
            message = choice["message"]
            calls = message.get("tool_calls") or []
            text = calls[0]["function"]["arguments"] if calls else message.get("content") or ""
            cut = choice.get("finish_reason") == "length"
            return str(text), "length" if cut else "stop", answer.get("usage")
