"""`grace.load`: from a path or Hub id to a model with a confidence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grace import plugins
from grace.config import DataSettings, SampleSettings, from_dict, is_missing
from grace.engines.base import ModelEngine
from grace.engines.gguf import gguf_file, resolve_model
from grace.engines.gguf.header import read_header
from grace.errors import ModelError, first_line
from grace.model.answering import Model
from grace.model.ready import known_weights, ready_head
from grace.store import CARD, LORA_CONFIG, ROWS, RunDir, is_run, read_card, runs_in
from grace.strategies import fitted_vote
from grace.tasks import load_task
from grace.tasks.conversations import recorded_forms
from grace.tasks.prompts import recorded_shots

DEFAULT_TASK = "trivia_qa"  # if grace.json names none: short open answers


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
    """Load a model with a calibrated confidence.

    Args:
        path: a run directory, an adapter directory, an exported model, a Hub id, or a model that
            the package has a head for (`grace list heads`), such as a GGUF file.
        adapter: an adapter or a run for the model at `path`.
        base: where the backbone is now, if it was moved after training.
        device: auto, cpu, cuda or cuda:N.
        dtype: auto, float32, bfloat16 or float16.
        trust_remote_code: run Python code that comes with the model or that its grace.json names.
        engine: transformers, or vllm for an export. For a model on a server, such as a GGUF export
            on llama-server, call `grace.model.loading.connect` instead.

    Raises:
        ModelError: there is no model at `path`, or it has no <CNF>.
        ConfigError: the engine is unknown or not installed, or grace.json names code to run.
    """
    from grace.engines.base import load_engine

    if not isinstance(path, str | Path) or not str(path):
        raise ModelError("no model is named; give a run, a model directory or a Hub id")
    if adapter is None:
        path = _local(path)
    else:
        adapter = _local(adapter)
    if Path(path).is_file() and adapter is None and (Path(path).parent / CARD).is_file():
        raise ModelError(
            f"{path} is one file of a model whose grace.json has the confidence; give the "
            f"directory, {Path(path).parent}"
        )
    folder = adapter_folder(Path(path), Path(adapter) if adapter else None)
    if folder is None and base is None and not (Path(path) / CARD).is_file():
        folder = ready_head(Path(path))
        if folder is None and (file := gguf_file(Path(path))):
            read_header(file)  # refuses what is no model
            raise ModelError(_no_confidence(path))
    card = read_card(folder or Path(path))
    model = backbone(path, folder, card, base or (path if adapter else None))
    if trust_remote_code:
        plugins.trust(code_in(card))
    plugins.refuse_code(code_in(card), f"{folder or path}/grace.json")
    loaded: Any = load_engine(
        engine,
        model,
        adapter=folder,
        device=device,
        dtype=dtype,
        trust_remote_code=trust_remote_code,
    )
    if loaded.readout is None:
        raise ModelError(_no_confidence(path))
    if not card:
        raise ModelError(
            f"{folder or path} has <CNF> but no {CARD}, without which the confidence would be "
            "wrong; copy that file too, or export the model again"
        )
    return described(loaded, Path(path), folder or Path(path), card)


def _no_confidence(path: str | Path) -> str:
    return (
        f"{path} has no <CNF> token, so it has no confidence, and there is no ready-made head for "
        f"its weights (only for {known_weights()}); fit one to graded answers with `grace fit`, "
        "train it with `grace run`, or name its adapter"
    )


def _local(path: str | Path) -> str | Path:
    """Return a path, or the local copy of a model or adapter on the Hub, with its grace.json."""
    if is_missing(path):
        raise ModelError(
            f"{path} does not exist: no run and no model is there; check the path, or give a Hub id"
        )
    if Path(path).exists() or path == "pocket":
        return path
    import huggingface_hub

    name = resolve_model(str(path))  # says so if the Hub does not have it
    try:
        huggingface_hub.hf_hub_download(name, CARD)  # before gigabytes of weights
        return str(huggingface_hub.snapshot_download(name))
    except huggingface_hub.errors.RemoteEntryNotFoundError:
        raise ModelError(
            f"{name} on the Hub has no {CARD}, so it has no confidence; train it with `grace run`, "
            "or name its adapter"
        ) from None
    except Exception as error:  # many kinds, of the network and of the cache
        raise ModelError(
            f"{name} cannot be downloaded from the Hub ({first_line(error)}); try again, or give "
            "a local copy"
        ) from error


def described(engine: ModelEngine, path: Path, folder: Path, card: dict[str, Any]) -> Model:
    """Return a `Model` for an engine, with the prompt and the settings of its training run."""
    where = f"{folder}/grace.json"
    plugins.refuse_code(code_in(card), where)
    data = from_dict(DataSettings, card.get("data", {"task": DEFAULT_TASK}), where)
    sample = from_dict(SampleSettings, card.get("sample", {}), where)
    promise = RunDir(path).chosen_threshold()
    task = load_task(data.task, card.get("kind", ""))
    shots, forms = recorded_shots(card), recorded_forms(card)
    return Model(engine, task, data, sample, promise, shots, fitted_vote(path), forms)


def adapter_folder(path: Path, adapter: Path | None) -> Path | None:
    """Return the adapter directory that `path` and `adapter` name, None for a whole model."""
    if adapter is not None:
        return adapter_folder(adapter, None) or adapter
    if is_run(path):
        if not (path / "adapter" / CARD).exists():
            raise ModelError(f"run {path} has no trained adapter yet; finish it: grace run {path}")
        return path / "adapter"
    if runs := runs_in(path):
        names = ", ".join(str(run.relative_to(path)) for run in runs)
        raise ModelError(f"{path} holds several runs ({names}); name one of them, e.g. {runs[0]}")
    return path if any((path / name).exists() for name in (LORA_CONFIG, ROWS)) else None


def backbone(
    path: str | Path, folder: Path | None, card: dict[str, Any], base: str | Path | None
) -> str:
    """Return the directory or Hub id that `path` needs: itself, or the backbone of its adapter."""
    if folder is None:
        if base:
            raise ModelError(
                f"{path} is no run and no adapter, so it has no backbone to look for in {base}; "
                "leave --base (or base=) out"
            )
        return str(path)
    if not base and "base_model" not in card:
        raise ModelError(
            f"{folder} has no grace.json that names its backbone, so GrACE did not train it; name "
            "a run, or train one: grace run"
        )
    model = str(base or card["base_model"])
    gone = is_missing(base) if base else Path(model).is_absolute() and not Path(model).exists()
    if gone:
        raise ModelError(
            f"the backbone of {folder} is not at {model}; say where it is now: --base DIR, or "
            "base= in Python"
        )
    return model


def code_in(card: dict[str, Any]) -> list[str]:
    """Return the modules that a grace.json names (see `plugins.refuse_code`)."""
    data = card.get("data")
    return plugins.code_in([str(data.get("task", ""))] if isinstance(data, dict) else [])


# --- `connect`: a model that runs on a server, without its weights


def connect(
    url: str, path: str | Path, *, model: str | None = None, api_key: str = "", **options: Any
) -> Model:
    """Return the model that a server runs, without its weights or torch."""
    from grace.engines.openai import OpenAIEngine

    folder = adapter_folder(Path(path), None) or Path(path)
    if not folder.is_dir():
        raise ModelError(
            f"directory {path} does not exist; give a run, or a directory that `grace export` wrote"
        )
    engine = OpenAIEngine(url, folder, model=model, api_key=api_key, **options)
    return described(engine, Path(path), folder, read_card(folder))


def served_directory(url: str, *, model: str | None = None, api_key: str = "") -> Path:
    """Return the directory on this machine that a server has loaded its model from."""
    from grace.engines.http.background import Background, Calls
    from grace.engines.http.probing import model_of
    from grace.engines.http.upstream import Upstream

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
            f"{url} serves {root or entry['id']!r}, and there is no such directory here; name the "
            "run or the export, for its tokenizer and grace.json"
        )
    return Path(root)
