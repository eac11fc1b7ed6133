"""Load a model and its tokenizer from a directory or the Hugging Face Hub."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError

from grace import plugins
from grace.chat import frozen_date, with_date, with_thinking
from grace.cnf import count_rows, find_readout
from grace.config import is_missing
from grace.engines.local.adapters import check_peft, load_adapter, put_rows, read_prompt_ends
from grace.engines.local.forward import cache_argument
from grace.engines.local.layers import LayerRows, PromptEnds
from grace.engines.reading import check_rows, ends_in, ids_in, named_ends
from grace.errors import ModelError, first_line
from grace.evidence import Evidence
from grace.progress import say
from grace.store import CARD, LORA_CONFIG, ROWS, cache_folder, is_run, read_card

LARGE = 10**8  # parameters of a model that takes hours
BFLOAT16 = ("amx_tile", "avx512_bf16")  # what processors that compute in bfloat16 support
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Loaded(NamedTuple):
    """A model in evaluation mode with its tokenizer, and how its confidence is read."""

    model: Any
    tokenizer: Any
    read_at: str
    evidence: Evidence | None = None
    stops: tuple[int, ...] = ()  # tokens that contain a stop text
    layer_rows: LayerRows | None = None  # what logits gain from a layer in the middle
    prompt_ends: PromptEnds | None = None  # what those of training were like


def load(
    path: str | Path,
    *,
    adapter: Path | None = None,
    device: str = "auto",
    dtype: str = "auto",
    trust_remote_code: bool = False,
    thinking: bool = False,
    date: str = "",
    trainable: bool = False,
) -> Loaded:
    """Load a causal language model, and an adapter: merged in float32, else beside the weights."""
    trust_remote_code = trust_remote_code or plugins.trusts(path)
    where = pick_device(device)
    kind = _pick_dtype(dtype, where, path)
    _check_directory(path)
    named_ends(Path(path))  # transformers takes a torn generation_config.json for a missing one
    tokenizer = load_tokenizer(
        adapter or path, trust_remote_code=trust_remote_code, thinking=thinking, date=date
    )
    model = _load_weights(path, kind, trust_remote_code)
    manifest, readout = read_card(Path(adapter or path)), find_readout(tokenizer)
    if adapter is not None:
        model = load_adapter(model, Path(adapter), manifest, readout)
    remedy = "load the adapter that belongs to this tokenizer"
    check_rows(readout, count_rows(model), f"the model in {path}", remedy)
    if dtype == "auto" and next(model.parameters()).dtype == torch.float16:
        model = model.to(torch.bfloat16)
    model = model.to(where).eval()
    if next(model.parameters()).dtype != torch.float32 and not trainable:
        head_in_float32(model)
    evidence, layer_rows, prompt_ends = Evidence.in_card(manifest), None, None
    if adapter is not None and (Path(adapter) / ROWS).is_file():
        # into a float32 head, if there is one
        layer_rows = put_rows(model, Path(adapter), tokenizer, manifest.get("layer", 0))
        prompt_ends = read_prompt_ends(Path(adapter), model, manifest, evidence)
    stops = tuple(manifest.get("stop_ids", ()))
    read_at = manifest.get("read_at", "predict")
    return Loaded(model, tokenizer, read_at, evidence, stops, layer_rows, prompt_ends)


def load_tokenizer(
    path: str | Path, *, trust_remote_code: bool = False, thinking: bool = False, date: str = ""
) -> Any:
    """Load a tokenizer; without a grace.json, `thinking` and `date` go into its chat template."""
    from transformers import AutoTokenizer

    trust_remote_code = trust_remote_code or plugins.trusts(path)
    _check_directory(path, config=False)
    if not (Path(path) / CARD).exists():  # a model, whose faults are not the tokenizer's
        read_config(path, trust_remote_code=trust_remote_code)
    remedy = f"give a directory with tokenizer.json, e.g. copy the base model's into {path}"
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)
        if tokenizer:
            tokenizer("")  # fails now where a damaged setting would fail later
    except Exception as error:  # transformers raises many kinds here
        _name_own_code(path, error)
        reason = first_line(error)
        shown = "" if reason.endswith(":") else f" ({reason})"  # a list follows, of no use here
        raise ModelError(f"no tokenizer in {path}{shown}; {remedy}") from error
    if tokenizer is False or len(tokenizer) == 0:
        raise ModelError(f"no tokenizer in {path}; {remedy}")
    if isinstance(tokenizer.chat_template, str) and not read_card(Path(path)):
        template = with_date(tokenizer.chat_template, date)
        if frozen_date(template):
            _say_frozen(str(path), frozen_date(template))
        tokenizer.chat_template = with_thinking(template, thinking)
    return tokenizer


@functools.cache
def _say_frozen(path: str, date: str) -> None:
    say(
        f"{path}: the chat template prints the date, which is kept at {date} (model.date), so that "
        "answers and their confidence do not change from day to day"
    )


def read_limit(path: str | Path, *, trust_remote_code: bool = False) -> int | None:
    """Return the context of a model in tokens, None if it has no limit; no weights are loaded."""
    config = read_config(path, trust_remote_code=trust_remote_code)
    limit: int | None = getattr(config.get_text_config(), "max_position_embeddings", None)
    return limit


def read_config(path: str | Path, *, trust_remote_code: bool = False) -> Any:
    """Return the configuration of a model; no weights are loaded."""
    from transformers import AutoConfig

    trust_remote_code = trust_remote_code or plugins.trusts(path)
    _check_directory(path)
    try:
        return AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
    except Exception as error:  # transformers raises many kinds here
        _name_own_code(path, error)
        raise ModelError(
            f"no model in {path} ({first_line(error)}); give a directory with config.json"
        ) from error


def pick_device(device: str) -> torch.device:
    """Return the torch device of a setting; under `torchrun` each process has its own."""
    if device == "auto":
        own = os.environ.get("LOCAL_RANK")
        device = (f"cuda:{own}" if own else "cuda") if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise ModelError(f"device {device!r} is unknown; use auto, cpu, cuda or cuda:N")
    where = torch.device(device)
    if where.type == "cuda" and (where.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise ModelError(
            f"device {device!r} does not exist ({count} CUDA devices found); use auto or cpu"
        )
    return where


def head_in_float32(model: Any) -> None:
    """Compute an inference model's logits in float32: in 16 bits c would be off by up to 0.015."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    head = base.get_output_embeddings()
    plain = getattr(head, "original_module", head)  # without the rows that peft keeps apart
    weight_VD = plain.weight.detach().to(torch.float32, copy=True)
    if plain is not head:
        rows = head.token_adapter
        for name in rows.active_adapters:
            weight_VD[rows.token_indices[name]] = rows.trainable_tokens_delta[name].detach()
    bias = getattr(plain, "bias", None)
    exact = torch.nn.Linear(weight_VD.shape[1], weight_VD.shape[0], bias is not None, device="meta")
    exact.weight = torch.nn.Parameter(weight_VD, requires_grad=False)
    if bias is not None:
        exact.bias = torch.nn.Parameter(bias.detach().float(), requires_grad=False)
    exact.register_forward_pre_hook(lambda _, inputs: (inputs[0].float(),))
    base.set_output_embeddings(exact.eval())


def config_ends(model: Any) -> tuple[int, ...]:
    """Return the end tokens that the configurations of a model name."""
    configs = (getattr(model, "generation_config", None), model.config)
    return tuple(ids_in(*(getattr(config, "eos_token_id", None) for config in configs)))


def eos_ids(
    model: Any, tokenizer: Any, besides: Sequence[int] = (), stops: Sequence[int] = ()
) -> tuple[int, ...]:
    """Return the ids that end a response: the tokenizer's EOS, the model's own, and `stops`."""
    named = (*ids_in(tokenizer.eos_token_id), *config_ends(model), *stops)
    return ends_in(named, count_rows(model), besides)


def faster(model: Any, dtype: str) -> str:
    """Return a faster way to run a model on this machine, empty if it is small or there is none."""
    device = model.device
    if model.num_parameters() < LARGE:
        return ""
    if device.type == "cuda" and importlib.util.find_spec("vllm"):
        return "vLLM is installed: --set model.engine=vllm samples answers several times faster"
    multiplies = (getattr(torch.cpu, f"_is_{name}_supported", bool) for name in BFLOAT16)
    if device.type == "cpu" and dtype == "auto" and any(known() for known in multiplies):
        return (
            "this processor computes in bfloat16: --set model.dtype=bfloat16 reads prompts several "
            "times faster, and rounds confidences a little (about 0.005)"
        )
    return ""


def _pick_dtype(dtype: str, device: torch.device, path: str | Path) -> torch.dtype | str:
    if dtype == "auto":
        if device.type == "cpu":
            return torch.float32
        of_gguf = cache_folder().resolve() / "gguf" in Path(path).resolve().parents
        return torch.bfloat16 if of_gguf else "auto"
    if dtype not in DTYPES:
        raise ModelError(f"dtype {dtype!r} is unknown; use auto, {', '.join(DTYPES)}")
    return DTYPES[dtype]


def _check_directory(path: str | Path, *, config: bool = True) -> None:
    """Refuse a path that is neither a Hub id nor the directory of a model."""
    folder = Path(path)
    if not folder.exists():
        if is_missing(path):
            raise ModelError(f"directory {path} does not exist; give a model directory or Hub id")
        return
    if not folder.is_dir():
        raise ModelError(f"{path} is a file; give the directory that holds config.json")
    if is_run(folder):
        raise ModelError(
            f"{path} is a run; give the model that it started from, or an export of it"
        )
    if config and not (folder / "config.json").exists():
        adapter = any((folder / name).exists() for name in (CARD, LORA_CONFIG))
        has = "is an adapter, no model" if adapter else "has no config.json"
        wanted = "the model that it belongs to" if adapter else "a Hugging Face model directory"
        raise ModelError(f"{path} {has}; give {wanted}")


def _load_weights(path: str | Path, kind: torch.dtype | str, trust_remote_code: bool) -> Any:
    from transformers.utils import find_adapter_config_file

    options = {"dtype": kind, "trust_remote_code": trust_remote_code}
    with contextlib.suppress(OSError):  # transformers says below what is wrong with the model
        if embedded := find_adapter_config_file(path):
            check_peft(Path(embedded))
    try:
        with no_progress_bar():
            model, info = _causal_model(path, **options, output_loading_info=True)
    except Exception as error:  # transformers raises many kinds here
        _name_own_code(path, error)
        reason = first_line(error)
        remedy = "give a directory with config.json and weights (model.safetensors)"
        if "ignore_mismatched_sizes" in reason:
            reason = "its weights have other sizes than config.json says"
        if isinstance(error, SafetensorError):
            remedy = "its weights are damaged: download them again"
        raise ModelError(f"no causal language model in {path} ({reason}); {remedy}") from error
    missing = sorted(info["missing_keys"])
    if missing:
        raise ModelError(
            f"the weights in {path} lack {len(missing)} tensors ({missing[0]}, ...); "
            "download the model again or check its architecture"
        )
    if not cache_argument(model):
        raise ModelError(
            f"{path} is a {type(model).__name__}, which takes no KV cache and attention mask; "
            "use a transformer or a hybrid"
        )
    return model


def _name_own_code(path: str | Path, error: Exception) -> None:
    """Refuse a model for the code that comes with it, if that is why loading it failed."""
    if "trust_remote_code" in str(error):
        raise ModelError(
            f"{path} comes with Python code of its own; if you know what it does, allow it: "
            f"{plugins.TRUSTED}={path} in the environment, --set model.trust_remote_code=true of "
            "grace run, fit and label, or trust_remote_code=True in Python"
        ) from error


def _causal_model(path: str | Path, **options: Any) -> Any:
    """Load a causal language model, or one that also takes images."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    try:
        return AutoModelForCausalLM.from_pretrained(path, **options)
    except ValueError as error:
        if "Unrecognized configuration class" not in str(error):
            raise
        with contextlib.suppress(ValueError):
            return AutoModelForImageTextToText.from_pretrained(path, **options)
        raise


@contextlib.contextmanager
def no_progress_bar() -> Iterator[None]:
    """Hide the progress bars of transformers while it reads or writes weights."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
