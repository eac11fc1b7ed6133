"""What is wrong with a body, in OpenAI's words rather than pydantic's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi.exceptions import RequestValidationError

from grace.server.errors import ApiError


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
