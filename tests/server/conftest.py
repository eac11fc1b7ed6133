"""A live server with the model of a tiny finished run, and a proxy in front of an upstream."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from live_server import Live, running

from fake_upstream import Server, serving
from grace.model import Model, load
from grace.model.loading import connect


@pytest.fixture(scope="session")
def tiny_model(finished: Path) -> Model:
    """The model of the tiny run."""
    return load(finished / "run")


@pytest.fixture(scope="module")
def live(tiny_model: Model, finished: Path) -> Iterator[Live]:
    """A server without an API key."""
    with running(tiny_model, finished / "run") as server:
        yield server


@pytest.fixture(params=["live", "proxy"])
def served(request: pytest.FixtureRequest) -> Live:
    """Both servers in turn: one with the model, one in front of another server."""
    server: Live = request.getfixturevalue(request.param)
    return server


@pytest.fixture(scope="module")
def upstream(tiny_model: Model) -> Iterator[Server]:
    engine = tiny_model.engine
    with serving(engine.model, engine.tokenizer, list(engine.reader.eos)) as server:  # type: ignore[attr-defined]
        yield server


@pytest.fixture(scope="module")
def relayed(upstream: Server, finished: Path) -> Iterator[Model]:
    model = connect(upstream.url, finished / "run", retries=1)
    yield model
    model.engine.close()  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def proxy(relayed: Model, finished: Path) -> Iterator[Live]:
    with running(relayed, finished / "run") as server:
        yield server
