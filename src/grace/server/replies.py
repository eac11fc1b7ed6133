"""What clients get: OpenAI's objects, with `confidence` on every choice."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from grace.records import to_json
from grace.server.completing import Ended, Piece, Token
from grace.server.jobs import Finished
from grace.server.voting import Voted

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
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
        return self.chunk([self._choice(piece.choice, piece.text, piece.tokens, delta=True)])

    def opening(self, choice: int) -> Json:
        """Return the event that says who speaks; only chats have one."""
        start = {"delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        return self.chunk([{"index": choice, **start, "logprobs": None}])

    def ending(self, ended: Ended, **extra: Any) -> Json:
        """Return the event of a choice that is complete."""
        choice = self._choice(ended.choice, "", (), delta=True)
        if self.chat:
            choice["delta"] = {}
        return self.chunk([choice | self._end(ended)], **extra)

    def complete(self, ended: Ended, pieces: Sequence[Piece]) -> Json:
        """Return a whole choice."""
        text = "".join(piece.text for piece in pieces)
        tokens = [token for piece in pieces for token in piece.tokens]
        choice = self._choice(ended.choice, text, tokens, delta=False)
        return choice | self._end(ended)

    def _end(self, ended: Ended) -> Json:
        """Return how a choice ends; a bound is there only in place of a confidence."""
        said: Json = {"finish_reason": ended.finish_reason, "confidence": ended.confidence}
        bound = {} if ended.at_most is None else {"confidence_at_most": ended.at_most}
        return said | bound | {"calibrated": self.calibrated}

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
    """Return what was read and written, in tokens."""
    prompt, completion = finished.prompt_tokens, finished.completion_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def voted(event: Voted) -> Json:
    """Return what a stream says of a sample that has arrived."""
    return {"vote": to_json(event.vote), "leading": event.leading}


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
