"""The OpenAPI document: the schema of every answer, which the tests validate answers against.

Messages, deltas and log-probabilities are those of OpenAI's document, and not spelled out again.
The docstrings of the models are their descriptions in the document.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ErrorDetail(_Answer):
    """An error: what happened, in which field, and what to do next."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(_Answer):
    """The body of every error."""

    error: ErrorDetail


class Usage(_Answer):
    """Numbers of tokens read and generated; end-of-sequence tokens count."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class FieldAnswer(_Answer):
    """The value of a field of a structured answer, and the probability that it is right."""

    value: Any
    confidence: float


class _MaybeRated(_Answer):
    confidence: float | None = None
    no_confidence: str | None = None
    calibrated: bool | None = None
    familiar: float | None = None
    fields: dict[str, FieldAnswer] | None = None


class _Rated(_MaybeRated):
    confidence: float | None
    calibrated: bool


class CompletionChoice(_Rated):
    """One answer with its confidence: a chat's `message`, or the `text` of `/v1/completions`."""

    index: int
    finish_reason: Literal["stop", "length", "tool_calls"]
    message: dict[str, Any] | None = None
    text: str | None = None
    logprobs: dict[str, Any] | None


class ChunkChoice(_MaybeRated):
    """New text of a choice: a chat's `delta`, or `text`; its last chunk has the confidence.

    Earlier chunks have the confidence so far, of a model trained with `grace.trace`.
    """

    index: int
    finish_reason: Literal["stop", "length", "tool_calls"] | None
    delta: dict[str, Any] | None = None
    text: str | None = None
    logprobs: dict[str, Any] | None
    confidence_so_far: float | None = None


class _Object(_Answer):
    id: str
    created: int
    model: str
    grace: dict[str, Any] | None = None


class CompletionObject(_Object):
    """The answers to a conversation, or the continuations of prompts."""

    object: Literal["chat.completion", "text_completion"]
    choices: list[CompletionChoice]
    usage: Usage


class CompletionChunk(_Object):
    """One event of a stream of these."""

    object: Literal["chat.completion.chunk", "text_completion"]
    choices: list[ChunkChoice]
    usage: Usage | None = None


class Score(_Rated):
    """The confidence of one response."""

    index: int


class Scores(_Answer):
    """The confidences of the responses, in the order of the request."""

    object: Literal["list"]
    model: str
    data: list[Score]
    usage: Usage


class ModelCard(_Answer):
    """The model and its measured calibration."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    grace: dict[str, Any]


class ModelList(_Answer):
    """The one model that is served."""

    object: Literal["list"]
    data: list[ModelCard]


class Health(_Answer):
    """The server works."""

    status: Literal["ok"]
    waiting: int


REFERENCE = "#/components/schemas/{model}"
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody}
    for status in (400, 401, 404, 408, 413, 415, 421, 429, 500, 501, 502, 503, 504)
}


def responses(model: type[BaseModel], chunk: type[BaseModel] | None = None) -> dict[Any, Any]:
    """Return the `responses` of a route: an object, server-sent events of `chunk`, or an error."""
    success: dict[str, Any] = {"model": model}
    if chunk is not None:
        text = f"server-sent events; the data of each is a {chunk.__name__}, of the last [DONE]"
        schema = {
            "type": "string",
            "description": text,
            "contentMediaType": "application/json",
            "contentSchema": {"$ref": REFERENCE.format(model=chunk.__name__)},
        }
        success["content"] = {"text/event-stream": {"schema": schema}}
    return {200: success, **ERRORS}


def complete_document(app: FastAPI, *, protected: bool, events: Sequence[type[BaseModel]]) -> None:
    """Add what FastAPI cannot know, such as `events` of streams, once the document is asked for."""
    made = app.openapi  # takes longer than all else before a server listens

    def whole() -> dict[str, Any]:
        if app.openapi_schema is None:
            _complete(made(), protected, events)  # FastAPI keeps this very object
        return made()

    app.openapi = whole  # type: ignore[method-assign]


def _complete(document: dict[str, Any], protected: bool, events: Sequence[type[BaseModel]]) -> None:
    parts = document["components"]
    for chunk in events:
        schema = chunk.model_json_schema(mode="serialization", ref_template=REFERENCE)
        parts["schemas"] |= schema.pop("$defs", {}) | {chunk.__name__: schema}
    for name in ("HTTPValidationError", "ValidationError"):  # invalid bodies get 400, not 422
        parts["schemas"].pop(name, None)
    if protected:
        parts["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            operation["responses"].pop("422", None)
            if protected and path.startswith("/v1/"):
                operation["security"] = [{"key": []}]
