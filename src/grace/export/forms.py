"""Write a trained model in the forms that Hugging Face's libraries and vLLM load.

Shapes: V vocabulary, D hidden size, R LoRA rank, E tokens that are read.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

from grace.cnf import find_readout
from grace.engines.local.adapters import read_rows, read_tensors
from grace.engines.local.loading import (
    DTYPES,
    Loaded,
    eos_ids,
    load,
    load_tokenizer,
    no_progress_bar,
    read_config,
)
from grace.errors import ConfigError, ModelError
from grace.export.widening import READINGS_SCALE, READINGS_SCALE_HALF, Carried, widen
from grace.methods.adapter import LOG
from grace.store import (
    AGAIN,
    LORA_CONFIG,
    LORA_WEIGHTS,
    ROWS,
    adapter_weights,
    digest,
    read_object,
    write_json,
)

TRAINED_ROWS = "trainable_tokens_delta"  # part of the names that peft gives them


class Source(NamedTuple):
    """A trained model, and the choices of the user who exports it."""

    run: Path  # for report, threshold and diagram, which an adapter directory lacks
    adapter: Path
    record: dict[str, Any]  # its grace.json
    base: str  # directory or Hub id of the backbone
    base_name: str  # as the run names it, maybe a GGUF file
    form: str  # one of `grace.export.FORMS`
    dtype: str  # of the weights
    license_id: str | None  # in the model card; None: the backbone's

    @property
    def adapter_digest(self) -> str:
        """The digest of the adapter's weights; an export names those that it was made from."""
        return str(self.record.get("adapter_digest") or digest(adapter_weights(self.adapter)))


def write_adapter(source: Source, out: Path) -> None:
    """Copy the adapter but for its training log, with a path of the backbone that PEFT finds."""
    for file in sorted(source.adapter.iterdir()):
        if file.is_file() and file.name != LOG:
            shutil.copyfile(file, out / file.name)
    if source.record.get("base_model") != source.base and (out / LORA_CONFIG).is_file():
        config = read_object(out / LORA_CONFIG)
        write_json(out / LORA_CONFIG, {**config, "base_model_name_or_path": source.base})


def write_merged(source: Source, out: Path) -> None:
    """Write a plain Hugging Face checkpoint, which is merged in float32 and then rounded once."""
    from transformers import GenerationConfig

    if source.dtype not in ("auto", *DTYPES):
        raise ConfigError(f"dtype {source.dtype!r} is unknown; use auto, {', '.join(DTYPES)}")
    loaded = load(source.base, adapter=source.adapter, device="cpu", dtype="float32")
    dtype = _base_dtype(source.base) if source.dtype == "auto" else DTYPES[source.dtype]
    carried = carry_layer(loaded, READINGS_SCALE_HALF if dtype == torch.float16 else READINGS_SCALE)
    model, tokenizer = carried.model.to(dtype), loaded.tokenizer
    model.config.dtype = dtype
    generation = model.generation_config
    generation.eos_token_id = end_ids(model, tokenizer, source.record)
    generation.bos_token_id = tokenizer.bos_token_id
    if tokenizer.pad_token_id is not None:
        generation.pad_token_id = tokenizer.pad_token_id
    # A changed one is not saved with the model if the base has settings in it without effect.
    model.generation_config = GenerationConfig()
    with no_progress_bar():
        model.save_pretrained(out)
    generation.to_json_file(out / "generation_config.json")
    tokenizer.save_pretrained(out)


def carry_layer(loaded: Loaded, reading_scale: float = READINGS_SCALE, more: int = 0) -> Carried:
    """Let the end of a loaded model contain what c reads in its middle, if anything (`widen`)."""
    readout = find_readout(loaded.tokenizer)
    if loaded.layer_rows is None or readout is None:
        return Carried(loaded.model)
    return widen(loaded.model, loaded.layer_rows, readout.ids, reading_scale, more)


def _base_dtype(base: str) -> torch.dtype:
    dtype: Any = getattr(read_config(base), "dtype", None)
    return dtype if dtype in DTYPES.values() else torch.float32


def write_vllm_lora(source: Source, out: Path) -> None:
    """Write LoRA matrices only, with the trained rows as a LoRA of the output head.

    The tokens that are read are never fed to the model, so the input embedding stays the base's.
    generation_config.json names the end tokens for `grace proxy`, which may not have the base.
    """
    from transformers import GenerationConfig

    if layer := source.record.get("layer"):
        raise ModelError(
            f"the confidence reads the MLP of block {layer}, which a LoRA cannot carry to the end; "
            "use --format merged, or fit with grace.layer=0"
        )
    tokenizer = load_tokenizer(source.adapter)
    ids = _readable_ids(source.record, tokenizer)
    base = load(source.base, device="cpu", dtype="float32").model
    head = base.get_output_embeddings()
    _check_head(head, ids, source.base)
    head_name = next(name for name, module in base.named_modules() if module is head)
    trained_ED, tensors, config = _lora_parts(source.adapter, head_name)
    change_ED = trained_ED - head.weight[list(ids)].detach()
    a_RD, b_VR = _head_lora(change_ED, ids, len(head.weight), config)
    prefix = f"base_model.model.{head_name}"
    tensors |= {f"{prefix}.lora_A.weight": a_RD, f"{prefix}.lora_B.weight": b_VR}
    config |= {
        "trainable_token_indices": None,
        "target_modules": sorted({*config["target_modules"], head_name}),
        "base_model_name_or_path": source.base,
    }
    save_file(dict(sorted(tensors.items())), out / LORA_WEIGHTS, {"format": "pt"})
    write_json(out / LORA_CONFIG, config)
    tokenizer.save_pretrained(out)
    ends = end_ids(base, tokenizer, source.record)
    GenerationConfig(eos_token_id=ends).save_pretrained(out)


def _readable_ids(record: dict[str, Any], tokenizer: Any) -> tuple[int, ...]:
    readout = find_readout(tokenizer)
    if readout is None or readout.head == "bins":
        raise ModelError(
            "the confidence is read from ten bin tokens, and a LoRA can carry four rows; use "
            "--format merged"
        )
    if record["read_at"] == "feed":
        raise ModelError(
            "the confidence is read at <CNF>'s own position (paper.variant=feed), which takes vLLM "
            "a second request; use --format merged with grace serve, or train another paper.variant"
        )
    return readout.ids


def _check_head(head: Any, ids: Sequence[int], base: str) -> None:
    """Refuse an output head to which a LoRA cannot add the rows that are read."""
    if max(ids) >= len(head.weight):
        raise ModelError(
            f"the base {base} has {len(head.weight)} rows and none to spare for <CNF> (id "
            f"{ids[0]}), so stock vLLM cannot load it as a LoRA; use --format merged"
        )
    if getattr(head, "bias", None) is not None:
        raise ModelError(
            f"the output head of {base} has a bias, which a LoRA cannot change for <CNF>; use "
            "--format merged"
        )


def _lora_parts(adapter: Path, head: str) -> tuple[Tensor, dict[str, Tensor], dict[str, Any]]:
    """Return the trained rows of the head, (E, D), LoRA's matrices if any, and the PEFT config."""
    if (adapter / ROWS).is_file():
        from peft import LoraConfig

        rows_ED = read_rows(adapter)
        made = LoraConfig(r=len(rows_ED), lora_alpha=len(rows_ED), task_type="CAUSAL_LM")
        config = json.loads(json.dumps(made.to_dict(), default=list))
        return rows_ED, {}, {**config, "target_modules": []}
    tensors, config = read_tensors(adapter / LORA_WEIGHTS), read_object(adapter / LORA_CONFIG)
    rows = {key: tensors.pop(key) for key in list(tensors) if TRAINED_ROWS in key}
    of_head = [key for key in rows if f".{head}." in key]
    if not rows or not {"r", "lora_alpha", "target_modules"} <= config.keys():
        raise ModelError(f"{adapter} is not a trained LoRA with rows; {AGAIN}")
    return rows[(of_head or list(rows))[0]].float(), tensors, config


def _head_lora(
    change_ED: Tensor, ids: Sequence[int], vocabulary: int, config: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """Return A (R, D) and B (V, R), a row and column each, that change logits of `ids` alone."""
    rank, scale = config["r"], config["lora_alpha"] / config["r"]
    if rank < len(ids):
        raise ModelError(
            f"a LoRA of rank {rank} cannot carry {len(ids)} rows; use --format merged, or train "
            f"with paper.rank={len(ids)}"
        )
    a_RD = torch.zeros(rank, change_ED.shape[1])
    b_VR = torch.zeros(vocabulary, rank)
    a_RD[: len(ids)] = change_ED / scale
    b_VR[list(ids), range(len(ids))] = 1
    return a_RD, b_VR


def end_ids(model: Any, tokenizer: Any, record: dict[str, Any]) -> list[int]:
    """Return the ids that end a response, `<CNF>` too if it is drawn as an end."""
    readout = find_readout(tokenizer)
    read = readout.ids if readout else ()
    ends = readout.ends if readout and record["read_at"] != "prompt" else ()
    return [*eos_ids(model, tokenizer, read, record.get("stop_ids", ())), *ends]
