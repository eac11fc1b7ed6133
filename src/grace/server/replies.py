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

from grace.engines import Rating
from grace.records import CUT, EMPTY, to_json
from grace.server.counters import Counters, trace_answer
from grace.server.errors import ApiError, as_api_error
from grace.server.jobs.backends import ClientGone, Voted
from grace.server.jobs.completion import Ended, Piece, Token, Top
from grace.server.jobs.queue import Finished

OTHER = "another model has answered, whose confidence is not known"
log = logging.getLogger(__name__)
Json = dict[str, Any]
GraceFields = Callable[[str, Ended], Json]
"""Makes the `grace` object of an answer from the text and the end of its first choice."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """Makes the JSON objects of one answer, which share an id, a time and a model."""

    chat: bool
    model: str
    calibrated: bool = True  # the prompt is that of the training run
    function: str = ""  # whose arguments the answers are, if any
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, choices: Sequence[Json], usage: Json, **extra: Any) -> Json:
        """Return the answer to a request that does not stream."""
        return self._object("chat.completion", choices, usage=usage, **extra)

    def chunk(self, choices: Sequence[Json], **extra: Any) -> Json:
        """Return one event of a stream."""
        return self._object("chat.completion.chunk", choices, **extra)

    def opening(self, choice: int) -> Json:
        """Return the first event of a chat choice, which names the role."""
        delta = {"role": "assistant", "content": ""} | self._call(choice, "", named=True)
        start = {"delta": delta, "finish_reason": None}
        return self.chunk([{"index": choice, **start, "logprobs": None}])

    def piece(self, piece: Piece) -> Json:
        """Return the event of new text."""
        choice = self._choice(piece.choice, piece.text, piece.tokens, delta=True)
        along = {} if piece.so_far is None else {"confidence_so_far": piece.so_far}
        return self.chunk([choice | along])

    def ending(self, ended: Ended) -> Json:
        """Return the last event of a choice."""
        choice = self._choice(ended.choice, "", (), delta=True)
        if self.chat:
            choice["delta"] = {}
        return self.chunk([choice | self._end(ended)])

    def complete(self, ended: Ended, pieces: Sequence[Piece]) -> Json:
        """Return a whole choice."""
        text = "".join(piece.text for piece in pieces)
        text = text.lstrip() if self.chat else text  # as `Answer.lines` streams it
        tokens = [token for piece in pieces for token in piece.tokens]
        return self._choice(ended.choice, text, tokens, delta=False) | self._end(ended)

    def _call(self, choice: int, written: str, *, named: bool, delta: bool = True) -> Json:
        """Return a call of the function in place of content, empty where there is no function."""
        if not self.function:
            return {}
        function = {"name": self.function} if named else {}
        call: Json = {"index": 0} if delta else {}
        if named:
            call |= {"id": f"call_{self.id}_{choice}", "type": "function"}
        call["function"] = function | {"arguments": written}
        return {"content": None, "tool_calls": [call]}

    def _end(self, ended: Ended) -> Json:
        called = self.function and ended.finish_reason == "stop"
        why = CUT if ended.finish_reason == "length" else EMPTY
        return {
            "finish_reason": "tool_calls" if called else ended.finish_reason,
            **rated(
                ended,
                calibrated=self.calibrated and not ended.by_other,
                without=OTHER if ended.by_other else why,
            ),
        }

    def _object(self, kind: str, choices: Sequence[Json], **extra: Any) -> Json:
        prefix, kind = ("chatcmpl", kind) if self.chat else ("cmpl", "text_completion")
        return {
            "id": f"{prefix}-{self.id}",
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": list(choices),
            **extra,
        }

    def _choice(self, index: int, text: str, tokens: Sequence[Token], *, delta: bool) -> Json:
        content: Json
        if not self.chat:
            content = {"text": text}
        elif delta:
            content = {"delta": {"content": text} | self._call(index, text, named=False)}
        else:
            turn = {"role": "assistant", "content": text, "refusal": None}
            content = {"message": turn | self._call(index, text, named=True, delta=False)}
        logprobs = (_chat_logprobs if self.chat else _text_logprobs)(tokens) if tokens else None
        unfinished = {"finish_reason": None} if delta else {}
        return {"index": index, **content, "logprobs": logprobs, **unfinished}


def rated(found: Ended | Rating, *, calibrated: bool, without: str = EMPTY) -> Json:
    """Return what an answer says of its confidence; `without`: why it has none, if it has none."""
    return {
        "confidence": found.confidence,
        **({"no_confidence": without} if found.confidence is None else {}),
        "calibrated": calibrated,
        **({} if found.familiar is None else {"familiar": found.familiar}),
        **({"fields": found.fields} if found.fields else {}),
    }


def usage(finished: Finished) -> Json:
    """Return the numbers of tokens read and generated."""
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
            "top_logprobs": [_entry(text, logprob) for text, logprob in token.top or ()],
        }
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def _entry(text: str, logprob: float | None) -> Json:
    whole = "\N{REPLACEMENT CHARACTER}" not in text  # else the token is a part of a character
    return {"token": text, "logprob": logprob, "bytes": list(text.encode()) if whole else None}


def _text_logprobs(tokens: Sequence[Token]) -> Json:
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [_by_text(token.top) for token in tokens],
        "text_offset": [token.offset for token in tokens],
    }


def _by_text(top: Top | None) -> dict[str, float] | None:
    """Return log-probabilities by text; of tokens with the same text the most probable counts."""
    found: dict[str, float] = {}
    for text, logprob in top or ():
        found.setdefault(text, logprob)
    return None if top is None else found


class Writer:
    """Writes the objects of an answer; `/v1/responses` has another one."""

    def whole(self, answer: Json) -> Json:
        """Return the body of a whole answer."""
        return answer

    def write(self, chunk: Json) -> bytes:
        """Return the events of a chunk of a stream."""
        return _line(chunk)

    def fail(self, error: Json) -> bytes:
        """Return the event of an error within a stream."""
        return _line(error)

    def end(self) -> bytes:
        """Return the end of a stream."""
        return b"data: [DONE]\n\n"


class Answer:
    """Collects the events of one job and turns them into an answer."""

    def __init__(
        self,
        envelope: Envelope,
        counters: Counters,
        grace_fields: GraceFields | None,
        writer: Writer,
    ) -> None:
        self._writer = writer
        self._envelope, self._counters, self._grace_fields = envelope, counters, grace_fields
        self._pieces: dict[int, list[Piece]] = {}
        self._ends: dict[int, Ended] = {}
        self._begun: set[int] = set()  # choices whose first visible character was streamed

    async def whole(self, arriving: AsyncGenerator[Any, None]) -> Json:
        """Wait for all events and return the whole answer."""
        finished = Finished()
        async with aclosing(arriving):
            async for event in arriving:
                self._take(event)
                if isinstance(event, Finished):
                    finished = event
        choices = [
            self._envelope.complete(ended, self._pieces[choice])
            for choice, ended in sorted(self._ends.items())
        ]
        answer = self._envelope.whole(choices, usage(finished), **self._grace(finished))
        return self._writer.whole(answer)

    async def lines(
        self, first: Any, arriving: AsyncGenerator[Any, None], *, usage_wanted: bool
    ) -> AsyncIterator[bytes]:
        """Yield server-sent events as job events arrive; an error is sent as the last one."""
        writer = self._writer
        later: Json = {"usage": None} if usage_wanted else {}  # as OpenAI does until the end
        try:
            async with aclosing(arriving):
                for chunk in self._chunks(first, usage_wanted):
                    yield writer.write(later | chunk)
                async for event in arriving:
                    for chunk in self._chunks(event, usage_wanted):
                        yield writer.write(later | chunk)
        except ClientGone:
            return
        except Exception as error:
            if not isinstance(error, ApiError):
                log.exception("a stream failed")
            yield writer.fail(as_api_error(error).body)
        yield writer.end()

    def _chunks(self, event: Any, usage_wanted: bool) -> Iterator[Json]:
        envelope = self._envelope
        choice = 0 if isinstance(event, Voted) else getattr(event, "choice", None)
        if envelope.chat and choice is not None and choice not in self._pieces:
            yield envelope.opening(choice)
        self._take(event)
        if isinstance(event, Piece):
            yield envelope.piece(self._from_first_character(event))
        elif isinstance(event, Ended):
            yield envelope.ending(event)
        elif isinstance(event, Voted):
            vote = {"vote": to_json(event.vote), "leading": event.leading}
            yield envelope.chunk([], grace=vote)
        elif isinstance(event, Finished):
            if grace := self._grace(event):
                yield envelope.chunk([], **grace)
            if usage_wanted:
                yield envelope.chunk([], usage=usage(event))

    def _from_first_character(self, piece: Piece) -> Piece:
        """Drop whitespace before a chat's content, such as the space after a prompt's "Answer:"."""
        if not self._envelope.chat or piece.choice in self._begun:
            return piece
        text = piece.text.lstrip()
        if text:
            self._begun.add(piece.choice)
        return piece._replace(text=text)

    def _take(self, event: Any) -> None:
        if isinstance(event, Piece | Ended | Voted):
            self._pieces.setdefault(0 if isinstance(event, Voted) else event.choice, [])
        if isinstance(event, Piece):
            self._pieces[event.choice].append(event)
        elif isinstance(event, Ended):
            self._ends[event.choice] = event
            trace_answer(event, calibrated=self._envelope.calibrated)
            if not event.by_other:
                self._counters.count_answer(event.confidence, event.familiar)
        elif isinstance(event, Finished):
            self._counters.count_tokens(event)

    def _grace(self, finished: Finished) -> Json:
        """Return the `grace` object of the answer, empty where there is none."""
        told = finished.value or {}
        if self._grace_fields is not None:
            text = "".join(piece.text for piece in self._pieces[0])
            fields = self._grace_fields(text, self._ends[0])
            if self._ends[0].by_other:  # it reaches no threshold of this model's
                fields = {name: fields[name] for name in ("answer",) if name in fields}
            told = told | fields
        return {"grace": told} if told else {}


def _line(value: Json) -> bytes:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n".encode()
