"""A live server with the model of a tiny finished run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from live_server import Live, running

from grace.model import Model, load


@pytest.fixture(scope="session")
def tiny_model(finished: Path) -> Model:
    """The model of the tiny run."""
    return load(finished / "run")


@pytest.fixture(scope="module")
def live(tiny_model: Model, finished: Path) -> Iterator[Live]:
    """A server without an API key."""
    with running(tiny_model, finished / "run") as server:
        yield server
