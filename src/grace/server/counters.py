"""The Prometheus metrics at `/metrics`, and the confidence in a span of OpenTelemetry."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from grace.server.jobs.completion import Ended
from grace.server.jobs.queue import Finished

SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)
TENTHS = tuple(number / 10 for number in range(1, 11))


class Counters:
    """The metrics of one server; `count_waiting` returns the number of requests in the queue."""

    def __init__(self, count_waiting: Callable[[], int]) -> None:
        self.registry = registry = CollectorRegistry()
        counter = functools.partial(Counter, namespace="grace", registry=registry)
        histogram = functools.partial(Histogram, namespace="grace", registry=registry)
        self.requests = counter("requests", "Requests answered", ["path", "status"])
        about = "Time from a request's head to its last byte"
        self.seconds = histogram("request_seconds", about, ["path"], buckets=SECONDS)
        self.tokens = counter("tokens", "Tokens read and written", ["kind"])
        about = "Confidence of answers; it moves when the questions change"
        self.confidences = histogram("confidence", about, buckets=TENTHS)
        about = "How familiar prompts are, from 0 to 1, to a model fitted on several sources"
        self.familiar = histogram("familiar", about, buckets=TENTHS)
        about = "Answers cut before their end, and votes in which no answer was found"
        self.unrated = counter("answers_without_confidence", about)
        about = "Answers of a server with a fallback: kept, forwarded to it, or kept as it failed"
        self.cascade = counter("cascade", about, ["outcome"])
        waiting = Gauge("grace_requests_waiting", "Requests in the queue", registry=registry)
        waiting.set_function(count_waiting)

    def count_answer(self, confidence: float | None, familiar: float | None = None) -> None:
        """Count one answer by its confidence and by how familiar its prompt is."""
        if familiar is not None:
            self.familiar.observe(familiar)
        if confidence is None:
            self.unrated.inc()
        else:
            self.confidences.observe(confidence)

    def count_tokens(self, finished: Finished) -> None:
        """Count the tokens that one request read and generated."""
        self.tokens.labels("prompt").inc(finished.prompt_tokens)
        self.tokens.labels("completion").inc(finished.completion_tokens)

    def text(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self.registry)


# --- the span of a request, where something traces it: `opentelemetry-instrument grace serve ...`


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
