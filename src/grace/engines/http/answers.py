"""Parse the answers of an upstream server, and turn its errors into `UpstreamError`.

An error quotes the beginning of what the server said, and never its address. `server/errors.py`
decides how much of it a client sees.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any, Literal

from grace.errors import GraceError

QUOTED = 300  # characters of the server's message in an error
Json = dict[str, Any]
Why = Literal[
    "unreachable",
    "busy",
    "refused",
    "invalid",
    "too_large",
    "failed",
    "broken",
    "malformed",
    "unsupported",
]


class UpstreamError(GraceError):
    """A request to an upstream server failed.

    Attributes:
        message: what happened.
        why: `unreachable` (no connection), `busy` (429 or 503 after all retries), `refused` (keys,
            an unknown model), `invalid` or `too_large` (it rejects the request), `failed` (an error
            of the server), `broken` (the connection ended within an answer), `malformed` (the
            answer cannot be parsed) or `unsupported` (the server lacks a feature that is needed).
        detail: the server's own message, empty if there is none.
        retry_after_s: how long a busy server asks to wait.
    """

    def __init__(
        self, message: str, why: Why, *, detail: str = "", retry_after_s: float = 1.0
    ) -> None:
        super().__init__(f"{message}: {detail}" if detail else message)
        self.message, self.detail = message, detail
        self.why = why
        self.retry_after_s = retry_after_s


@contextlib.contextmanager
def parsing(failure: str) -> Iterator[None]:
    """Turn an answer of an unexpected form into an `UpstreamError` with this message."""
    try:
        yield
    except (AttributeError, LookupError, OverflowError, TypeError, ValueError) as error:
        raise UpstreamError(failure, "malformed", detail=short(str(error))) from None


def parsed(content: bytes | str) -> Json:
    """Return the JSON object that a server sent."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise UpstreamError("the upstream sent no JSON object", "malformed", detail=_start(content))
    if value.get("error"):
        raise UpstreamError("the upstream failed", "failed", detail=_message(value))
    return value


def choice_of(answer: Json) -> Json:
    """Return the only choice of an answer."""
    choices = answer.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise UpstreamError("the upstream sent no choice", "malformed", detail=short(str(answer)))
    return choices[0]


def message(content: bytes) -> str:
    """Return the message in the body of an error."""
    try:
        return _message(json.loads(content))
    except (ValueError, RecursionError):
        return _start(content) or "(nothing)"


def _message(answer: Any) -> str:
    """Return the message in an error of OpenAI's form, or the whole answer."""
    error = answer.get("error", answer) if isinstance(answer, dict) else answer
    message = error.get("message") if isinstance(error, dict) else None
    return short(str(message or error))


def _start(content: bytes | str) -> str:
    start = content[: 4 * QUOTED]
    return short(start.decode("utf-8", "replace") if isinstance(start, bytes) else start)


def short(text: str) -> str:
    """Return the beginning of a text in one line, without control characters."""
    line = " ".join(text[: 4 * QUOTED].split())
    shown = "".join(char for char in line if char.isprintable())
    return shown if len(shown) <= QUOTED else shown[:QUOTED] + "…"
