"""Start vLLM so that c can be read, and refuse settings with which c would be wrong."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from grace.engines.stops import ids_in
from grace.errors import ConfigError, ModelError, first_line
from grace.store import LORA_CONFIG, read_json

OLDEST = (0, 22)  # older ones return log-probabilities that depend on the temperature
# On a CPU vLLM 0.32 dies in a seeded sample whose prompt it splits between two steps.
WHOLE_PROMPTS = 32_768  # tokens of a step
SAID = 300  # characters of its errors, whose first lines say little
LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # the values of max_lora_rank that vLLM accepts


def check_version() -> None:
    """Import vLLM, whose log goes to standard error; refuse one that is missing or too old."""
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")  # stdout is for results
    try:
        import vllm
    except ImportError as error:
        raise ConfigError(
            f"the vllm engine needs vLLM ({first_line(error)}); pip install vllm, in an "
            "environment of its own, as it pins torch and transformers"
        ) from None
    match = re.match(r"(\d+)\.(\d+)", vllm.__version__)
    if match and (int(match[1]), int(match[2])) < OLDEST:
        raise ModelError(
            f"vLLM {vllm.__version__} returns log-probabilities that depend on the temperature, "
            "so c would be wrong; install 0.22 or later"
        )


def check_raw(llm: Any) -> None:
    """Refuse a vLLM whose log-probabilities are not those of the model at temperature 1."""
    config = llm.llm_engine.vllm_config
    mode = config.model_config.logprobs_mode
    if mode != "raw_logprobs":
        raise ModelError(
            f"vLLM runs with logprobs_mode={mode}, so c would depend on temperature and top-p; "
            "use raw_logprobs, the default"
        )
    if config.speculative_config is not None:
        raise ModelError(
            "vLLM does not return the log-probability of <CNF> with speculative decoding; start "
            "it without speculative_config"
        )


def ends_of(config: Any) -> tuple[int, ...]:
    """Return the end tokens that a model's configurations name."""
    named = config.try_get_generation_config().get("eos_token_id")
    return tuple(ids_in(named, getattr(config.hf_text_config, "eos_token_id", None)))


def start(
    model: str, folder: Path, dtype: str, options: dict[str, Any], *, lora: bool
) -> tuple[Any, Any]:
    """Return a `vllm.LLM`, and the request for the LoRA in `folder`, None without one."""
    from vllm import LLM

    options = {"logprobs_mode": "raw_logprobs", **_types(dtype), **options}
    request = None
    if lora:
        from vllm.lora.request import LoRARequest

        rank = max_lora_rank(folder)
        options = {"enable_lora": True, "max_loras": 1, "max_lora_rank": rank, **options}
        request = LoRARequest(folder.name, 1, str(folder.absolute()))
    try:
        return LLM(model=model, **options), request
    except Exception as error:  # vLLM raises many kinds here
        said = " ".join(str(error).split())[:SAID] or type(error).__name__
        raise ModelError(f"vLLM cannot load {model} ({said}); its own log says more") from error


def max_lora_rank(folder: Path) -> int:
    """Return the value of vLLM's `max_lora_rank` for the LoRA in a folder."""
    rank: int = read_json(folder / LORA_CONFIG)["r"]
    return next((allowed for allowed in LORA_RANKS if allowed >= rank), rank)


def _types(dtype: str) -> dict[str, Any]:
    """Return vLLM's options for a dtype, with the output head in float32."""
    import torch

    cpu: dict[str, Any] = {}
    if not torch.cuda.is_available():
        cpu["max_num_batched_tokens"] = WHOLE_PROMPTS
        dtype = "float32" if dtype == "auto" else dtype
    exact = {} if dtype == "float32" else {"hf_overrides": {"head_dtype": "float32"}}
    return {"dtype": dtype, **exact, **cpu}
