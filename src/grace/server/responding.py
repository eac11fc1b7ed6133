"""`/v1/responses`: OpenAI's newer API, as a translation to and from a chat of one answer."""

from __future__ import annotations

import json
import secrets
import time
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from grace.server.replies import Json, Writer
from grace.server.requests import (
    ChatMessage,
    ChatRequest,
    GraceOptions,
    JsonSchema,
    ObjectFormat,
    SchemaFormat,
    StreamOptions,
    Strict,
    Text,
    Turn,
)

# of a choice, in the output item
SAID = ("confidence", "no_confidence", "calibrated", "familiar", "fields")
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "background": (False,),
    "include": ([],),
    "reasoning": ({},),
    "tools": ([],),
    "tool_choice": ("auto", "none"),
    "truncation": ("disabled",),
    "top_logprobs": (0,),
}


class InputTurn(Turn):
    """One turn of the input."""

    type: Literal["message"] = "message"


class NamedSchema(JsonSchema):
    """The answer is JSON that follows a schema."""

    type: Literal["json_schema"]


class AnyForm(BaseModel):
    """The answer is text, or a JSON object."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["text", "json_object"]


class TextOptions(BaseModel):
    """Options of the answer's text."""

    format: Annotated[NamedSchema | AnyForm | None, Field(discriminator="type")] = None


class ResponsesRequest(Strict):
    """The body of `/v1/responses`: text in, text out; nothing is kept between requests."""

    neutral: ClassVar[dict[str, Any]] = {**Strict.neutral, **NEUTRAL}
    model: Annotated[str, Field(max_length=256)]
    input: Text | Annotated[list[InputTurn], Field(fail_fast=True, min_length=1, max_length=1024)]
    instructions: Text | None = None
    max_output_tokens: Annotated[int | None, Field(ge=1)] = None
    temperature: Annotated[float | None, Field(ge=0, le=2, allow_inf_nan=False)] = None
    top_p: Annotated[float | None, Field(gt=0, le=1, allow_inf_nan=False)] = None
    text: TextOptions = TextOptions()
    stream: bool = False
    grace: GraceOptions | None = None

    def as_chat(self) -> ChatRequest:
        """Return the same request to the chat API, checked already."""
        asked = self.input
        turns = [InputTurn(role="user", content=asked)] if isinstance(asked, str) else asked
        if self.instructions is not None:
            turns = [InputTurn(role="system", content=self.instructions), *turns]
        body: Json = {"max_completion_tokens": self.max_output_tokens, "grace": self.grace}
        body |= {"temperature": self.temperature, "top_p": self.top_p}
        format = self.text.format
        if isinstance(format, NamedSchema):
            body["response_format"] = SchemaFormat(type="json_schema", json_schema=format)
        elif format is not None and format.type == "json_object":
            body["response_format"] = ObjectFormat(type=format.type)
        return ChatRequest.model_construct(
            model=self.model,
            messages=[ChatMessage.model_construct(**turn.plain()) for turn in turns],
            stream=self.stream,
            stream_options=StreamOptions(include_usage=True),
            **{key: value for key, value in body.items() if value is not None},
        )


class Responses(Writer):
    """Writes the answer to a chat as a response, whole or as events."""

    def __init__(self, body: ResponsesRequest) -> None:
        self._body, self._number, self._created = body, 0, int(time.time())
        self._id = secrets.token_hex(16)
        self._text, self._choice, self._rest = "", dict[str, Any](), dict[str, Any]()

    def whole(self, chat: Json) -> Json:
        """Return the response to a chat's answer."""
        (self._choice,) = chat["choices"]
        self._text = self._choice["message"]["content"]
        self._rest = {key: chat[key] for key in ("usage", "grace") if key in chat}
        return self._response()

    def write(self, chunk: Json) -> bytes:
        """Return the events of one chunk of a chat's stream."""
        lines = b""
        self._rest |= {key: chunk[key] for key in ("usage", "grace") if chunk.get(key)}
        for choice in chunk["choices"]:
            delta = choice["delta"]
            if "role" in delta:
                lines += self._begin()
            elif delta.get("content"):
                self._text += delta["content"]
                lines += self._event("response.output_text.delta", delta=delta["content"], **AT)
            if choice["finish_reason"]:
                self._choice = choice
        return lines

    def fail(self, error: Json) -> bytes:
        """Return the event of an error, which is the last one."""
        self._choice = {}
        return self._event("error", **{k: error["error"][k] for k in ("code", "message", "param")})

    def end(self) -> bytes:
        """Return the events at the end of a stream."""
        if not self._choice:
            return b""
        (item,) = self._response()["output"]
        done = "response.incomplete" if self._cut else "response.completed"
        return b"".join(
            (
                self._event("response.output_text.done", text=self._text, **AT),
                self._event("response.content_part.done", part=item["content"][0], **AT),
                self._event("response.output_item.done", item=item, output_index=0),
                self._event(done, response=self._response()),
            )
        )

    @property
    def _cut(self) -> bool:
        return bool(self._choice.get("finish_reason") == "length")

    def _begin(self) -> bytes:
        empty = self._response(status="in_progress")
        item = self._output("in_progress") | {"content": []}
        return b"".join(
            (
                self._event("response.created", response=empty),
                self._event("response.in_progress", response=empty),
                self._event("response.output_item.added", item=item, output_index=0),
                self._event("response.content_part.added", part=_part(""), **AT),
            )
        )

    def _event(self, kind: str, **fields: Any) -> bytes:
        if "content_index" in fields:
            fields |= {"item_id": f"msg_{self._id}"}
        if kind.startswith("response.output_text"):
            fields |= {"logprobs": []}
        event = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return f"event: {kind}\ndata: {json.dumps(event, ensure_ascii=False)}\n\n".encode()

    def _output(self, status: str) -> Json:
        said = {key: self._choice[key] for key in SAID if key in self._choice}
        about = {"type": "message", "id": f"msg_{self._id}", "status": status, "role": "assistant"}
        return about | {"content": [_part(self._text)]} | said

    def _response(self, status: str = "") -> Json:
        status, body = status or ("incomplete" if self._cut else "completed"), self._body
        usage = self._rest.get("usage")
        return {
            "id": f"resp_{self._id}",
            "object": "response",
            "created_at": self._created,
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if self._cut else None,
            "error": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": {},
            "model": body.model,
            "output": [] if status == "in_progress" else [self._output(status)],
            "parallel_tool_calls": False,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "tool_choice": "none",
            "tools": [],
            "usage": usage and _usage(usage),
            **({"grace": self._rest["grace"]} if "grace" in self._rest else {}),
        }


class ResponseObject(BaseModel):
    """The answer as a response: its only output item has `confidence` and `calibrated`."""

    model_config = ConfigDict(extra="allow")

    id: str
    object: Literal["response"]
    status: Literal["completed", "incomplete", "in_progress"]
    model: str
    output: list[dict[str, Any]]


class ResponseEvent(BaseModel):
    """One event of a streamed response."""

    model_config = ConfigDict(extra="allow")

    type: str
    sequence_number: int


AT = {"output_index": 0, "content_index": 0}  # the only part of the only item


def _part(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(usage: Json) -> Json:
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage["total_tokens"],
    }
