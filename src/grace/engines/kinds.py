"""The engines by name.

An engine is a file of this folder that assigns `ENGINE`, a class with what
`grace.engines.ModelEngine` asks of it, or one of your own that is named `module:NAME`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grace import plugins
from grace.engines import ModelEngine, Opening


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
    stop: tuple[str, ...] = (),
    **options: Any,
) -> ModelEngine:
    """Load a model into an engine, or connect to the server that runs it.

    Args:
        kind: name of the engine, see `grace list engines`; or `module:NAME`.
        path: a model directory or Hub id; for openai, what the server serves, as it was exported.
        adapter: an adapter directory; for vllm, an export with format vllm-lora; not for llama.
        device: auto, cpu, cuda or cuda:N; vLLM chooses by itself.
        dtype: auto, float32, bfloat16 or float16.
        trust_remote_code: run Python code that comes with the model.
        batch_size: rows in flight; None: the engine's own choice.
        needs_cnf: refuse a model without `<CNF>`, where the engine does not train one.
        stop: texts that end a response, besides those that the model was trained with.
        options: the engine's own: further arguments of `vllm.LLM` or `llama_cpp.Llama`; for openai
            `url`, and what `OpenAIEngine.connect` takes.

    Raises:
        ConfigError: no such engine, or a setting that it does not have.
        ModelError: the model cannot be loaded; the message says what to do.
    """
    opening = Opening(
        path=path,
        adapter=adapter,
        device=device,
        dtype=dtype,
        trust_remote_code=trust_remote_code,
        batch_size=batch_size,
        needs_cnf=needs_cnf,
        stop=stop,
        options=options,
    )
    engine: ModelEngine = engine_class(kind).open(opening)
    return engine


def engine_class(kind: str) -> type[ModelEngine]:
    """Return the class of an engine, without opening a model.

    Raises:
        ConfigError: no such engine.
    """
    found: type[ModelEngine] = plugins.load("grace.engines", kind)
    return found
