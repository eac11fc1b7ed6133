"""Errors as OpenAI clients expect them: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi.exceptions import RequestValidationError

from grace.engines.http.answers import UpstreamError
from grace.errors import GraceError, ModelError, UserInputError

RETRY_AFTER_S = 1
UPSTREAM = {
    "busy": 503,
    "invalid": 400,
    "too_large": 413,
    "unsupported": 501,
}  # any other failure of it: 502


class ApiError(Exception):
    """A request that gets an error as its answer."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float = RETRY_AFTER_S,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s

    @property
    def body(self) -> dict[str, Any]:
        """The body of the answer."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        if self.status == 401:
            kind = "authentication_error"
        if self.status == 429:
            kind = "rate_limit_error"
        fields = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": fields}

    @property
    def headers(self) -> dict[str, str]:
        """Further headers of the answer."""
        if self.status == 401:
            return {"WWW-Authenticate": "Bearer"}
        if self.status not in (429, 503):
            return {}
        return {"Retry-After": f"{self.retry_after_s:.0f}"}


def as_api_error(error: BaseException) -> ApiError:
    """Return an error as the client sees it, without the details of internal ones."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, UpstreamError):
        return _upstream(error)
    if isinstance(error, UserInputError):
        return ApiError(400, str(error))
    if isinstance(error, ModelError):
        code = "context_length_exceeded" if "context" in str(error) else None
        return ApiError(400, str(error), code=code)
    if isinstance(error, GraceError):
        return ApiError(400, str(error))
    return ApiError(500, "the server failed on this request; its log says why", code="internal")


def _upstream(error: UpstreamError) -> ApiError:
    """Return an upstream's error; its own words only where they are about the request."""
    status, code = UPSTREAM.get(error.why, 502), f"upstream_{error.why}"
    text = str(error) if status in (400, 413) else error.message
    if error.why == "invalid" and "context length" in text:
        code = "context_length_exceeded"
    return ApiError(status, text, code=code, retry_after_s=error.retry_after_s)


def explain(error: RequestValidationError) -> ApiError:
    """Return the first thing that is wrong with a body, as exactly as the place is known."""
    found = error.errors()
    if found[0]["type"] == "json_invalid":
        return ApiError(400, f"the body is not valid JSON: {found[0]['msg']}")
    places = [_place(one["loc"][1:], error.body, one["type"] == "missing") for one in found]
    within = [n for n, place in enumerate(places) if place.startswith(places[0])]
    best = max(within, key=lambda n: len(places[n]))
    where, message = places[best], found[best]["msg"].removeprefix("Value error, ")
    if found[best]["type"] == "extra_forbidden":
        message = "this field is not supported with this value; leave it out"
    text = f"{where}: {message}" if where else message
    return ApiError(400, _whole(text), param=_whole(where) or None)


def _place(path: Sequence[str | int], body: Any, missing: bool) -> str:
    """Return where in a body something is, e.g. `messages[0].content`.

    A path also names the branches that were tried, which are no part of the body.
    """
    where, at = "", body
    for number, part in enumerate(path):
        if isinstance(part, int) and isinstance(at, list) and part < len(at):
            where, at = f"{where}[{part}]", at[part]
        elif isinstance(at, dict) and (part in at or (missing and number == len(path) - 1)):
            where, at = f"{where}.{part}" if where else str(part), at.get(part)
    return where


def _whole(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
