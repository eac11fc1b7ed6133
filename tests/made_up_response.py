"""A response for tests that care for a few of its fields only."""

from __future__ import annotations

from typing import Any

from grace.records import Response


def said(text: str, **others: Any) -> Response:
    """Return a response of one token that ended."""
    given: dict[str, Any] = {"token_ids": (9,), "finish_reason": "stop", "logprobs": (-1.0,)}
    return Response(text=text, **given | {"end_logprob": -1.0, "confidence": None} | others)
