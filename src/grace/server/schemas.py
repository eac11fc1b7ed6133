"""What is answered, for the OpenAPI document; tests hold every answer to it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ErrorDetail(_Answer):
    """What went wrong, where, and what to do."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(_Answer):
    """The body of every error."""

    error: ErrorDetail


class Usage(_Answer):
    """Tokens that were read and written, end tokens among them."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class _Rated(_Answer):
    confidence: float | None
    calibrated: bool


class _Choice(_Rated):
    index: int
    finish_reason: Literal["stop", "length"]


class TopLogprob(_Answer):
    """One token that was probable at a step."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(TopLogprob):
    """One step; `<CNF>` is the last of its `top_logprobs`."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(_Answer):
    """The steps of a choice."""

    content: list[TokenLogprob]
    refusal: str | None


class TextLogprobs(_Answer):
    """The steps of a choice of `/v1/completions`."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class ChatTurn(_Answer):
    """The model's turn."""

    role: Literal["assistant"]
    content: str
    refusal: str | None


class ChatChoice(_Choice):
    """One answer with its confidence."""

    message: ChatTurn
    logprobs: ChatLogprobs | None


class TextChoice(_Choice):
    """One continuation with its confidence."""

    text: str
    logprobs: TextLogprobs | None


class _Object(_Answer):
    id: str
    created: int
    model: str


class ChatCompletion(_Object):
    """The answer to a conversation."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: Usage
    grace: dict[str, Any] | None = None


class TextCompletion(_Object):
    """The continuations of prompts."""

    object: Literal["text_completion"]
    choices: list[TextChoice]
    usage: Usage


class ChatDelta(_Answer):
    """What the model's turn has grown by."""

    role: Literal["assistant"] | None = None
    content: str | None = None


class _ChunkChoice(_Answer):
    """What a choice has grown by; its last chunk has the confidence.

    The others have that of what is written so far, if the model knows it (`train.trace`).
    """

    index: int
    finish_reason: Literal["stop", "length"] | None
    confidence: float | None = None
    confidence_so_far: float | None = None
    calibrated: bool | None = None


class ChatChunkChoice(_ChunkChoice):
    """What a choice of a conversation has grown by."""

    delta: ChatDelta
    logprobs: ChatLogprobs | None


class TextChunkChoice(_ChunkChoice):
    """What a choice of `/v1/completions` has grown by."""

    text: str
    logprobs: TextLogprobs | None


class ChatCompletionChunk(_Object):
    """One event of a streamed conversation."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
    grace: dict[str, Any] | None = None


class TextCompletionChunk(_Object):
    """One event of a streamed completion."""

    object: Literal["text_completion"]
    choices: list[TextChunkChoice]
    usage: Usage | None = None


class Score(_Rated):
    """The confidence of one given response."""

    index: int


class Scores(_Answer):
    """The confidences of given responses, in their order."""

    object: Literal["list"]
    model: str
    data: list[Score]
    usage: Usage


class ModelCard(_Answer):
    """The model, and what its run has measured."""

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
