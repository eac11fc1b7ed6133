"""What a server upstream says: its answers, and its errors in its own words.

An error holds the server's words cut short, and never its address. How much of them a client is
shown is decided in `server/errors.py`.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from grace.errors import GraceError

WORDS_KEPT = 300  # characters of the server's own words
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
    """The server did not do what was asked of it; `said` are its own words, if any.

    `why` is `unreachable` (no connection), `busy` (429 or 503 to the end of all retries, come back
    after `retry_after_s`), `refused` (keys, an unknown model), `invalid` or `too_large` (the
    request, as it says), `failed` (its own error), `broken` (the connection ended within an
    answer), `malformed` (an answer that is none) or `unsupported` (it lacks something that is
    needed).
    """

    def __init__(
        self, message: str, why: Why, *, said: str = "", retry_after_s: float = 1.0
    ) -> None:
        super().__init__(f"{message}: {said}" if said else message)
        self.message, self.said = message, said
        self.why = why
        self.retry_after_s = retry_after_s


def parsed(content: bytes | str) -> Json:
    """Return the JSON object that a server sent.

    Raises:
        UpstreamError: it is none, or an error.
    """
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise UpstreamError("the upstream sent no JSON object", "malformed", said=_raw(content))
    if value.get("error"):
        raise UpstreamError("the upstream failed", "failed", said=_said(value))
    return value


def choice_of(answer: Json) -> Json:
    """Return the only choice of an answer.

    Raises:
        UpstreamError: there is none, or several.
    """
    choices = answer.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise UpstreamError("the upstream sent no choice", "malformed", said=short(str(answer)))
    return choices[0]


def message(content: bytes) -> str:
    """Return what the body of an error says."""
    try:
        return _said(json.loads(content))
    except (ValueError, RecursionError):
        return _raw(content) or "(nothing)"


def _said(answer: Any) -> str:
    """Return the message in an error of OpenAI's form, or what there is in its place."""
    error = answer.get("error", answer) if isinstance(answer, dict) else answer
    message = error.get("message") if isinstance(error, dict) else None
    return short(str(message or error))


def _raw(content: bytes | str) -> str:
    start = content[: 4 * WORDS_KEPT]
    return short(start.decode("utf-8", "replace") if isinstance(start, bytes) else start)


def short(text: str) -> str:
    """Return the beginning of a text in one line, without control characters."""
    line = " ".join(text[: 4 * WORDS_KEPT].split())
    shown = "".join(char for char in line if char.isprintable())
    return shown if len(shown) <= WORDS_KEPT else shown[:WORDS_KEPT] + "…"
