"""A model on a server: the facade without the weights."""

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
from grace.store import adapter_weights, digest, read_card


def connect(
    url: str,
    path: str | Path,
    *,
    model: str | None = None,
    api_key: str = "",
    **options: Any,
) -> Model:
    """Return the model that a server serves; its `ask`, `vote` and `score` are requests then.

    Neither weights nor torch are loaded.

    Args:
        url: the address of an OpenAI-compatible server, with or without `/v1`.
        path: the run, or what `grace export` wrote: for its tokenizer and grace.json.
        model: what the server calls the model; None: the only one that it has.
        api_key: the server's key.
        options: of `grace.engines.http.upstream.Upstream`.

    Raises:
        ModelError: no tokenizer with `<CNF>` there, the server's model was made from another
            adapter, or it would return other numbers than c; the message says which.
        UpstreamError: the server cannot be reached or does not have the model.
    """
    folder = adapter_folder(Path(path), None) or Path(path)
    if not folder.is_dir():
        raise ModelError(
            f"directory {path} does not exist; give a run or what `grace export` wrote"
        )
    engine = OpenAIEngine.connect(url, folder, model=model, api_key=api_key, **options)
    root = engine.served.root
    here, there = _made_from(folder), _made_from(Path(root))
    if here and there and here != there:
        engine.close()
        raise ModelError(
            f"{url} serves {root}, which was made from another adapter than {path}, so c would be "
            "read by the wrong weights; name what it serves"
        )
    return described(engine, Path(path), folder, read_card(folder))


def _made_from(folder: Path) -> str:
    """Return the digest of the adapter behind a directory, empty where that is not known."""
    weights = adapter_weights(folder)
    known = str(read_card(folder).get("adapter_digest", "")) if str(folder) != "." else ""
    return known or (digest(weights) if weights.is_file() else "")


def served_directory(url: str, *, model: str | None = None, api_key: str = "") -> Path:
    """Return the directory on this machine in which a server says that its model is.

    Raises:
        ModelError: the model is elsewhere, or the server does not have it.
        UpstreamError: the server cannot be reached.
    """
    background = Background("grace-upstream")
    calls, upstream = Calls(background), Upstream(url, api_key=api_key)
    try:
        said = calls.run(model_of(upstream, model, {}))
        calls.run(upstream.close())
    finally:
        background.close()
    root = str(said.get("root") or "")
    if not Path(root).is_dir():
        raise ModelError(
            f"{url} serves {root or said['id']!r}, which is no directory here; name the run or "
            "what `grace export` wrote, for its tokenizer and grace.json"
        )
    return Path(root)
