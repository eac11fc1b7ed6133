"""The engines by name.

An engine is a file of this folder that assigns `ENGINE`, a class with what
`grace.engines.ModelEngine` asks of it, or one of your own that is named `module:NAME`.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from grace import plugins
from grace.engines import ModelEngine, Opening


def load_engine(kind: str, path: str | Path, **settings: Any) -> ModelEngine:
    """Load a model into an engine, or connect to the server that runs it.

    Args:
        kind: name of the engine, see `grace list engines`; or `module:NAME`.
        path: a model directory or Hub id; for openai, what the server serves, as it was exported.
        settings: those of `grace.engines.Opening`; others are the engine's own options.

    Raises:
        ConfigError: no such engine, or a setting that it does not have.
        ModelError: the model cannot be loaded; the message says what to do.
    """
    common = {field.name for field in dataclasses.fields(Opening)} & settings.keys()
    given = {name: settings.pop(name) for name in common}
    engine: ModelEngine = engine_class(kind).open(Opening(path=path, **given, options=settings))
    return engine


def engine_class(kind: str) -> type[ModelEngine]:
    """Return the class of an engine, without opening a model.

    Raises:
        ConfigError: no such engine.
    """
    found: type[ModelEngine] = plugins.load("grace.engines", kind)
    return found
