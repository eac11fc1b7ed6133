"""Answers to clients: OpenAI's objects, whole or streamed, with `confidence` on every choice."""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from grace.records import to_json
from grace.server.counters import Counters
from grace.server.errors import as_api_error
from grace.server.jobs.backends import Voted
from grace.server.jobs.completion import Ended, Piece, Token
from grace.server.jobs.line import ClientGone
from grace.server.jobs.queue import Finished

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Envelope:
    """The parts that all objects of one answer share.

    `calibrated`: the prompt is that of the training run, which confidences are calibrated for.
    """

    chat: bool
    model: str
    calibrated: bool = True
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, choices: Sequence[Json], usage: Json, **extra: Any) -> Json:
        """Return the answer to a request that does not stream."""
        kind = "chat.completion" if self.chat else "text_completion"
        return self._object(kind, choices) | {"usage": usage} | extra

    def chunk(self, choices: Sequence[Json], **extra: Any) -> Json:
        """Return one event of a stream."""
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        return self._object(kind, choices) | extra

    def piece(self, piece: Piece) -> Json:
        """Return the event of a choice that has grown."""
        choice = self._choice(piece.choice, piece.text, piece.tokens, delta=True)
        along = {} if piece.so_far is None else {"confidence_so_far": piece.so_far}
        return self.chunk([choice | along])

    def opening(self, choice: int) -> Json:
        """Return the event that says who speaks; only chats have one."""
        start = {"delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        return self.chunk([{"index": choice, **start, "logprobs": None}])

    def ending(self, ended: Ended) -> Json:
        """Return the event of a choice that is complete."""
        choice = self._choice(ended.choice, "", (), delta=True)
        if self.chat:
            choice["delta"] = {}
        return self.chunk([choice | self._end(ended)])

    def complete(self, ended: Ended, pieces: Sequence[Piece]) -> Json:
        """Return a whole choice."""
        text = "".join(piece.text for piece in pieces)
        tokens = [token for piece in pieces for token in piece.tokens]
        choice = self._choice(ended.choice, text, tokens, delta=False)
        return choice | self._end(ended)

    def _end(self, ended: Ended) -> Json:
        return {
            "finish_reason": ended.finish_reason,
            "confidence": ended.confidence,
            "calibrated": self.calibrated,
        }

    def _object(self, kind: str, choices: Sequence[Json]) -> Json:
        prefix = "chatcmpl" if self.chat else "cmpl"
        return {
            "id": f"{prefix}-{self.id}",
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": list(choices),
        }

    def _choice(self, index: int, text: str, tokens: Sequence[Token], *, delta: bool) -> Json:
        said: Json
        if not self.chat:
            said = {"text": text}
        elif delta:
            said = {"delta": {"content": text}}
        else:
            said = {"message": {"role": "assistant", "content": text, "refusal": None}}
        listed = (_chat_logprobs if self.chat else _text_logprobs)(tokens)
        return {"index": index, **said, "logprobs": listed if tokens else None} | (
            {"finish_reason": None} if delta else {}
        )


def usage(finished: Finished) -> Json:
    """Return the numbers of tokens read and written."""
    prompt, completion = finished.prompt_tokens, finished.completion_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def _chat_logprobs(tokens: Sequence[Token]) -> Json:
    content = [
        {
            **_entry(token.text, token.logprob),
            "top_logprobs": [_entry(text, logprob) for text, logprob in token.top],
        }
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def _entry(text: str, logprob: float) -> Json:
    whole = "\N{REPLACEMENT CHARACTER}" not in text
    return {"token": text, "logprob": logprob, "bytes": list(text.encode()) if whole else None}


def _text_logprobs(tokens: Sequence[Token]) -> Json:
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [dict(token.top) for token in tokens],
        "text_offset": [token.offset for token in tokens],
    }


log = logging.getLogger(__name__)
Extra = Callable[[str, Ended], Json]
"""Makes what `grace` says besides, from the text and the end of the first choice."""


class Answer:
    """One answer in the making: what has arrived of it so far."""

    def __init__(self, reply: Envelope, counters: Counters, extra: Extra | None) -> None:
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
            said = {"vote": to_json(event.vote), "leading": event.leading}
            yield self._reply.chunk([], grace=said)
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
