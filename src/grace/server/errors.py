"""Errors in OpenAI's format: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastapi.exceptions import RequestValidationError

from grace.engines.http.upstream import UpstreamError
from grace.errors import ComputeError, GraceError, ModelError

RETRY_AFTER_S = 1
UPSTREAM = {"busy": 503, "invalid": 400, "too_large": 413, "unsupported": 501}
"""The status by `UpstreamError.why`; 502 for every other one."""


@dataclass(eq=False)
class ApiError(Exception):
    """An error that is the answer to a request."""

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    retry_after_s: float = RETRY_AFTER_S

    def __str__(self) -> str:
        return self.message

    @property
    def body(self) -> dict[str, Any]:
        """The JSON body."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        if self.status == 401:
            kind = "authentication_error"
        if self.status == 429:
            kind = "rate_limit_error"
        fields = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": fields}

    @property
    def headers(self) -> dict[str, str]:
        """The additional headers."""
        if self.status == 401:
            return {"WWW-Authenticate": "Bearer"}
        if self.status not in (429, 503):
            return {}
        return {"Retry-After": f"{self.retry_after_s:.0f}"}


def shutting_down() -> ApiError:
    """Return what those are told who still wait when the server stops."""
    return ApiError(503, "the server is shutting down; try another one")


def as_api_error(error: BaseException) -> ApiError:
    """Convert any error to one for the client; details of internal errors stay in the log."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestValidationError):
        return _invalid_body(error)
    if isinstance(error, UpstreamError):
        return _upstream_error(error)
    if isinstance(error, GraceError) and not isinstance(error, ComputeError):
        too_long = isinstance(error, ModelError) and "model's context is" in str(error)
        text = str(error).replace("max_new_tokens", "max_tokens")  # the name in a request
        return ApiError(400, text, code="context_length_exceeded" if too_long else None)
    return ApiError(500, "the server failed on this request; its log says why", code="internal")


def _upstream_error(error: UpstreamError) -> ApiError:
    """Convert an error of the upstream; a message that may hold internal details is not shown."""
    status, code = UPSTREAM.get(error.why, 502), f"upstream_{error.why}"
    text = str(error) if status in (400, 413) else error.message
    if error.why == "invalid" and "context length" in text:
        code = "context_length_exceeded"
    return ApiError(status, text, code=code, retry_after_s=error.retry_after_s)


def _invalid_body(error: RequestValidationError) -> ApiError:
    """Describe the first thing that is wrong with a body, at the most exact place.

    For a field of several types pydantic reports an error for each type; the one deepest inside
    the field, or else one that is not about the type, is about the type that the client meant.
    """
    errors = error.errors()
    if errors[0]["type"] == "json_invalid":
        why, place = errors[0].get("ctx", {}).get("error", errors[0]["msg"]), errors[0]["loc"][-1]
        return ApiError(400, f"the body is not valid JSON: {why} at character {place}")
    places = [_place(one["loc"][1:], error.body, one["type"] == "missing") for one in errors]
    same_field = [n for n, place in enumerate(places) if place.startswith(places[0])]
    best = max(same_field, key=lambda n: (len(places[n]), not errors[n]["type"].endswith("_type")))
    where, message = places[best], errors[best]["msg"].removeprefix("Value error, ")
    if errors[best]["type"] == "extra_forbidden":
        message = "this field is unknown, or not supported with this value; leave it out"
    return ApiError(
        400, _encodable(f"{where or 'the body'}: {message}"), param=_encodable(where) or None
    )


def _place(path: Sequence[str | int], body: Any, missing: bool) -> str:
    """Return a place in the body, e.g. `messages[0].content`, without types that pydantic tried."""
    where, at = "", body
    for number, part in enumerate(path):
        if isinstance(part, int) and isinstance(at, list) and part < len(at):
            where, at = f"{where}[{part}]", at[part]
        elif isinstance(at, dict) and (part in at or (missing and number == len(path) - 1)):
            where, at = f"{where}.{part}" if where else str(part), at.get(part)
    return where


def _encodable(text: str) -> str:
    """Replace lone surrogates, which cannot be sent as UTF-8."""
    return text.encode("utf-8", "replace").decode()
