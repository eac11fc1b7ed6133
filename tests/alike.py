"""Two responses that are the same."""

from __future__ import annotations

from typing import Any

import pytest


def assert_alike(one: Any, other: Any, tolerance: float = 1e-5, relative: float = 1e-6) -> None:
    """Check that tokens, text and end are the same, and numbers up to rounding."""
    assert (one.token_ids, one.text) == (other.token_ids, other.text)
    assert one.finish_reason == other.finish_reason
    for name in ("logprobs", "trace", "end_logprob", "confidence"):
        wanted = getattr(other, name)
        near = wanted if wanted is None else pytest.approx(wanted, abs=tolerance, rel=relative)
        assert getattr(one, name) == near, name
