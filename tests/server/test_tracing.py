"""The confidence in OpenTelemetry spans."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from live_server import NAME

from grace.model import Model
from grace.server import ServerSettings, create_app

INSTALL = "OpenTelemetry is not installed: pip install 'grace-confidence[otel]'"
pytest.importorskip("opentelemetry.sdk.trace", reason=INSTALL)
pytest.importorskip("opentelemetry.instrumentation.fastapi", reason=INSTALL)

QUESTION = "What is 7 and 49?"
SERVE = "from grace.cli import main; main()"


@pytest.fixture(scope="module")
def traced(tiny_model: Model, finished: Path) -> Iterator[tuple[Any, Any]]:
    """A client of a server whose requests are traced, and where their spans arrive."""
    from fastapi.testclient import TestClient
    from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    spans, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    app = create_app(tiny_model, ServerSettings(name=NAME), finished / "run")
    FastAPIInstrumentor.instrument_app(app, tracer_provider=provider)
    with TestClient(app, base_url="http://127.0.0.1") as client:
        yield client, spans


@pytest.mark.parametrize(
    ("more", "calibrated"),
    [
        ({}, True),
        ({"stream": True}, True),
        ({"n": 2, "grace": {"prompt": "raw"}}, False),
        ({"grace": {"budget": 2}}, True),
    ],
)
def test_the_span_of_a_request_says_what_its_answer_says(
    traced: tuple[Any, Any], more: dict[str, Any], calibrated: bool
) -> None:
    client, spans = traced
    spans.clear()
    body = {"model": NAME, "messages": [{"role": "user", "content": QUESTION}], "seed": 3, **more}
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200
    told = [dict(span.attributes) for span in spans.get_finished_spans()]
    (found,) = [one for one in told if any(name.startswith("grace.") for name in one)]
    assert found["http.route"] == "/v1/chat/completions"
    assert found["grace.calibrated"] is calibrated
    if "stream" in more:
        assert f'"confidence": {found.get("grace.confidence", "null")}' in answer.text
    else:
        assert found.get("grace.confidence") == answer.json()["choices"][0]["confidence"]


@pytest.mark.slow
def test_opentelemetry_instrument_traces_the_command(finished: Path) -> None:
    command = Path(sys.executable).with_name("opentelemetry-instrument")
    if not command.exists():
        pytest.skip(INSTALL)
    quiet = {"OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"}
    process = subprocess.Popen(
        [command, sys.executable, "-c", SERVE, "serve", str(finished / "run"), "--port", "0"],
        env={**os.environ, **quiet, "OTEL_TRACES_EXPORTER": "console"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    url = next(word for line in process.stdout for word in line.split() if "http://" in word)
    body = b'{"model": "run", "messages": [{"role": "user", "content": "What is 7 and 49?"}]}'
    head = {"Content-Type": "application/json"}
    urllib.request.urlopen(urllib.request.Request(f"{url}/v1/chat/completions", body, head)).close()
    process.terminate()
    assert '"grace.calibrated": true' in process.communicate(timeout=60)[0]
