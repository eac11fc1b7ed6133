"""From what a user names to a model that says how sure it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grace import plugins
from grace.config import DataSettings, SampleSettings, from_dict, is_missing
from grace.engines import StreamingEngine
from grace.engines.gguf import resolve_model
from grace.errors import ModelError
from grace.model.answering import Model
from grace.model.places import (
    adapter_folder,
    code_in,
    read_card,
    recorded_base,
    recorded_shots,
)
from grace.store import RunDir
from grace.tasks import load_task

DEFAULT_TASK = "trivia_qa"  # of a model whose grace.json names none: a short open answer


def load(
    path: str | Path,
    *,
    adapter: str | Path | None = None,
    base: str | Path | None = None,
    device: str = "auto",
    dtype: str = "auto",
    trust_remote_code: bool = False,
    engine: str = "transformers",
) -> Model:
    """Load a model that says how sure it is.

    Args:
        path: a run directory, an adapter directory, an exported model, a GGUF file, or a Hub id.
        adapter: an adapter directory for the model at `path`.
        base: the backbone's new place, when it is no longer where the adapter was trained.
        device: auto, cpu, cuda or cuda:N.
        dtype: auto, float32, bfloat16 or float16.
        trust_remote_code: run Python code that comes with the model or that its grace.json names.
        engine: transformers, or vllm for what `grace export` wrote; llama for GGUF, which an
            export with format gguf takes by itself.

    Raises:
        ModelError: nothing loadable there, or a model without <CNF>.
        ConfigError: no such engine, or it is not installed; grace.json names code to run.
    """
    from grace.engines.kinds import load_engine

    if not str(path):
        raise ModelError("no model is named; give a run, a model directory or a Hub id")
    if is_missing(path):
        raise ModelError(
            f"{path} does not exist: no run and no model is there; check the path, or give a Hub id"
        )
    folder = adapter_folder(Path(path), Path(adapter) if adapter else None)
    card = read_card(folder or Path(path))
    model = base or (path if adapter or folder is None else recorded_base(folder, card))
    if trust_remote_code:
        plugins.trust(code_in(card))
    plugins.refuse_code(code_in(card), f"{folder or path}/grace.json")
    loaded: Any = load_engine(
        "llama" if card.get("format") == "gguf" else engine,
        resolve_model(str(model)),
        adapter=folder,
        device=device,
        dtype=dtype,
        trust_remote_code=trust_remote_code,
    )
    if loaded.readout is None:
        raise ModelError(
            f"{path} has no <CNF> token, so it cannot say how sure it is; train it with "
            "`grace run`, or name its adapter"
        )
    return described(loaded, Path(path), folder or Path(path), card)


def described(engine: StreamingEngine, path: Path, folder: Path, card: dict[str, Any]) -> Model:
    """Return the model of an engine, with the prompt and the settings of its training run.

    Args:
        engine: the engine.
        path: what the user named; a run or an export may have a threshold.
        folder: the adapter or the model in it.
        card: the grace.json there.
    """
    where = f"{folder}/grace.json"
    plugins.refuse_code(code_in(card), where)
    data = from_dict(DataSettings, card.get("data", {"task": DEFAULT_TASK}), where)
    sample = from_dict(SampleSettings, card.get("sample", {}), where)
    promise = RunDir(path).chosen_threshold()
    return Model(engine, load_task(data.task), data, sample, promise, recorded_shots(card))
