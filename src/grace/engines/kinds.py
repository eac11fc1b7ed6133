"""The engines by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from grace.errors import ConfigError

if TYPE_CHECKING:
    from grace.engines.openai import OpenAIEngine
    from grace.engines.transformers import TransformersEngine
    from grace.engines.vllm import VllmEngine

Kind = Literal["transformers", "vllm", "openai"]
KINDS: tuple[Kind, ...] = ("transformers", "vllm", "openai")


def load_engine(
    kind: str,
    path: str | Path,
    *,
    adapter: Path | None = None,
    device: str = "auto",
    dtype: str = "auto",
    trust_remote_code: bool = False,
    batch_size: int | None = None,
    needs_cnf: bool = True,
    stop: Sequence[str] = (),
    **options: Any,
) -> TransformersEngine | VllmEngine | OpenAIEngine:
    """Load a model into an engine, or connect to the server that runs it.

    Args:
        kind: one of `KINDS`.
        path: a model directory or Hub id; for openai, what the server serves, as it was exported.
        adapter: an adapter directory; for vllm, an export with format vllm-lora.
        device: auto, cpu, cuda or cuda:N; vLLM chooses by itself.
        dtype: auto, float32, bfloat16 or float16.
        trust_remote_code: run Python code that comes with the model.
        batch_size: rows in flight; None: the engine's own choice.
        needs_cnf: refuse a model without `<CNF>`; vllm and openai only, as the transformers engine
            is also what trains one.
        stop: texts that end a response, besides those that the model was trained with.
        options: further arguments of `vllm.LLM`; for openai `url`, and what
            `OpenAIEngine.connect` takes.

    Raises:
        ConfigError: no such engine, or a setting that it does not have.
        ModelError: the model cannot be loaded; the message says what to do.
    """
    given: dict[str, Any] = {"dtype": dtype, "trust_remote_code": trust_remote_code}
    if kind == "vllm":
        from grace.engines.vllm import VllmEngine

        if device != "auto":
            raise ConfigError(
                f"device is {device!r}, but vLLM takes what CUDA_VISIBLE_DEVICES shows it; leave "
                "device at auto"
            )
        rows: dict[str, Any] = {"max_num_seqs": batch_size} if batch_size else {}
        base = None if adapter is None else str(path)
        return VllmEngine.load(
            adapter or path, base=base, needs_cnf=needs_cnf, stop=stop, **given, **rows, **options
        )
    if kind == "openai":
        if (device, dtype) != ("auto", "auto"):
            raise ConfigError("device and dtype are the server's own; leave both at auto")
        rows = {"max_in_flight": batch_size} if batch_size else {}
        return _connect(adapter or path, needs_cnf=needs_cnf, stop=stop, **rows, **options)
    if kind != "transformers":
        raise ConfigError(f"engine {kind!r} is unknown; use {', '.join(KINDS)}")
    if options:
        raise ConfigError(
            f"{', '.join(options)}: options for vLLM or a server; use engine vllm or openai"
        )
    from grace.engines.transformers import TransformersEngine

    return TransformersEngine.load(
        path, adapter=adapter, device=device, batch_size=batch_size, stop=stop, **given
    )


def _connect(folder: str | Path, *, url: str = "", **options: Any) -> OpenAIEngine:
    from grace.engines.openai import OpenAIEngine

    if not url:
        raise ConfigError("engine openai needs the address of a server: url=http://HOST:PORT")
    return OpenAIEngine.connect(url, folder, **options)
