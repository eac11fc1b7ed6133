"""Errors as OpenAI clients expect them: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

from typing import Any

from grace.engines.said import UpstreamError
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
        """What the answer holds."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        if self.status == 401:
            kind = "authentication_error"
        if self.status == 429:
            kind = "rate_limit_error"
        fields = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": fields}

    @property
    def headers(self) -> dict[str, str]:
        """What the answer's head holds besides."""
        if self.status == 401:
            return {"WWW-Authenticate": "Bearer"}
        if self.status not in (429, 503):
            return {}
        return {"Retry-After": f"{self.retry_after_s:.0f}"}


def queue_full(waiting: int) -> ApiError:
    """Return what a client is told when too many requests wait."""
    text = f"{waiting} requests wait already; try again in a moment"
    return ApiError(429, text, code="queue_full")


def as_api_error(error: BaseException) -> ApiError:
    """Return what a client is told of an error; of one that is ours, no details."""
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
    """Return what a client is told: of the upstream's own words, those about the request."""
    status, code = UPSTREAM.get(error.why, 502), f"upstream_{error.why}"
    text = str(error) if status in (400, 413) else error.message
    if error.why == "invalid" and "context length" in text:
        code = "context_length_exceeded"
    return ApiError(status, text, code=code, retry_after_s=error.retry_after_s)
