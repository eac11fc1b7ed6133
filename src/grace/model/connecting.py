"""`connect`: a model that runs on a server, without its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grace.engines.http.background import Background, Calls
from grace.engines.http.probing import model_of
from grace.engines.http.upstream import Upstream
from grace.engines.openai import OpenAIEngine
from grace.errors import ModelError
from grace.model import Model, described
from grace.model.loading import adapter_folder
from grace.store import read_card


def connect(
    url: str,
    path: str | Path,
    *,
    model: str | None = None,
    api_key: str = "",
    **options: Any,
) -> Model:
    """Return the model that a server runs; its `ask`, `vote` and `score` send requests.

    Neither weights nor torch are loaded.
    """
    folder = adapter_folder(Path(path), None) or Path(path)
    if not folder.is_dir():
        raise ModelError(
            f"directory {path} does not exist; give a run, or a directory that `grace export` wrote"
        )
    engine = OpenAIEngine(url, folder, model=model, api_key=api_key, **options)
    return described(engine, Path(path), folder, read_card(folder))


def served_directory(url: str, *, model: str | None = None, api_key: str = "") -> Path:
    """Return the directory on this machine that a server has loaded its model from."""
    background = Background("grace-upstream")
    calls, upstream = Calls(background), Upstream(url, api_key=api_key)
    try:
        entry = calls.run(model_of(upstream, model, {}))
        calls.run(upstream.close())
    finally:
        background.close()
    root = str(entry.get("root") or "")
    if not Path(root).is_dir():
        raise ModelError(
            f"{url} serves {root or entry['id']!r}, which is no directory here; name the run or "
            "the export, for its tokenizer and grace.json"
        )
    return Path(root)
