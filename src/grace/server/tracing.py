"""The confidence of an answer in its request's OpenTelemetry span, where something traces requests.

`opentelemetry-instrument grace serve ...` does; without it OpenTelemetry is not imported.
"""

from __future__ import annotations

import sys
from typing import Any

from grace.server.jobs.completion import Ended


def trace_answer(ended: Ended, *, calibrated: bool) -> None:
    """Note in the current span how a request's first choice has ended."""
    tracing = _loaded()
    if tracing is None or ended.choice != 0:
        return
    found = {
        "confidence": ended.confidence,
        "familiar": ended.familiar,
        "calibrated": calibrated and not ended.by_other,
        "fallback": ended.by_other or None,
    }
    told = {f"grace.{name}": value for name, value in found.items() if value is not None}
    tracing.get_current_span().set_attributes(told)


def send_traces() -> None:
    """Send the spans that still wait, before the process ends."""
    if (tracing := _loaded()) and hasattr(provider := tracing.get_tracer_provider(), "force_flush"):
        provider.force_flush()


def _loaded() -> Any:
    return sys.modules.get("opentelemetry.trace")
