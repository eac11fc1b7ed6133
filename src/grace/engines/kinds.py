"""Load an engine by its name.

An engine is a file of this folder that assigns `ENGINE`, a class that derives from
`grace.engines.base.ModelEngine`. An engine of your own is named `module:NAME`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from grace import plugins
from grace.config import key_values
from grace.engines import Opening
from grace.engines.base import ModelEngine
from grace.engines.gguf import resolve_model
from grace.errors import ConfigError, ModelError
from grace.store import read_card

COMMON = frozenset(field.name for field in dataclasses.fields(Opening))
"""The settings of all engines."""


def load_engine(kind: str, path: str | Path, **settings: Any) -> ModelEngine:
    """Load a model into an engine, or connect to the server that runs it."""
    named = {name: settings.pop(name) for name in COMMON & settings.keys()}
    engine = engine_class(kind)
    if "relay" not in engine.gives and read_card(Path(path)).get("format") == "gguf":
        raise ModelError(
            f"{path} holds a GGUF file for llama.cpp; serve it: llama-server -m {path}/model.gguf "
            f"-ctk f32 -ctv f32, with `grace proxy {path} --upstream URL` in front; or export with "
            "--format merged"
        )
    path = resolve_model(str(path), named.get("dtype", "auto"), named.get("device", "auto"))
    return engine.open(Opening(path=path, **named, options=settings))


def engine_class(kind: str) -> type[ModelEngine]:
    """Return the class of an engine, without opening a model."""
    engine: type[ModelEngine] = plugins.load("grace.engines", kind)
    return engine


def own_options(pairs: Iterable[str], where: str) -> dict[str, Any]:
    """Return the `KEY=VALUE` pairs that are options of one engine."""
    options = key_values(pairs, where)
    if common := sorted((COMMON | {"kind"}) & options.keys()):
        raise ConfigError(
            f"{where} {common[0]!r} is a setting of every engine; use --model, --device, --dtype "
            "or --set, e.g. model.dtype or sample.batch_size"
        )
    return options
