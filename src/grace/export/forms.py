"""Writing the forms that Hugging Face's libraries and vLLM load.

Shapes: V vocabulary, D hidden size, R rank.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from grace.cnf import find_readout
from grace.engines.local.loading import DTYPES, eos_ids, load, load_tokenizer, no_progress_bar
from grace.errors import ConfigError, ModelError
from grace.store import LORA_CONFIG, LORA_WEIGHTS, ROWS
from grace.training.adapter import LOG

DELTA = "trainable_tokens_delta"


class Source(NamedTuple):
    """What is exported: an adapter directory, its backbone, grace.json, and the type wanted.

    `file` is the GGUF file that the backbone came as, if it did.
    """

    adapter: Path
    base: str
    record: dict[str, Any]
    dtype: str
    file: Path | None = None


def write_adapter(source: Source, out: Path) -> None:
    """Copy the adapter as it is; a base that only this package knows by name is named by place."""
    for file in sorted(source.adapter.iterdir()):
        if file.is_file() and file.name != LOG:
            shutil.copyfile(file, out / file.name)
    if source.record["base_model"] != source.base and (out / LORA_CONFIG).is_file():
        config = json.loads((out / LORA_CONFIG).read_text(encoding="utf-8"))
        config["base_model_name_or_path"] = source.base
        (out / LORA_CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def write_merged(source: Source, out: Path) -> None:
    """Write a plain Hugging Face checkpoint; it is merged in float32 and then rounded.

    Raises:
        ConfigError: no such type.
    """
    if source.dtype not in ("auto", *DTYPES):
        raise ConfigError(f"dtype {source.dtype!r} is unknown; use auto, {', '.join(DTYPES)}")
    loaded = load(source.base, adapter=source.adapter, device="cpu", dtype="float32")
    kind = _base_type(source.base) if source.dtype == "auto" else DTYPES[source.dtype]
    model = loaded.model.to(kind)
    model.config.dtype = kind
    ends = end_ids(model, loaded.tokenizer, source.record)
    model.generation_config.eos_token_id = ends
    model.generation_config.bos_token_id = loaded.tokenizer.bos_token_id
    if loaded.tokenizer.pad_token_id is not None:
        model.generation_config.pad_token_id = loaded.tokenizer.pad_token_id
    with no_progress_bar():
        model.save_pretrained(out)
    loaded.tokenizer.save_pretrained(out)


def write_vllm_lora(source: Source, out: Path) -> None:
    """Write LoRA matrices alone, the rows that are read as an update of the output head.

    The head gains B A with A the differences between the trained rows and the base's, and B their
    unit vectors: exactly those logits change. The tokens are never fed, so the input embedding
    stays the base's. generation_config.json is for `grace proxy`, which may have no base to ask
    what else ends a response.

    Raises:
        ModelError: the base has no rows to spare, or c is not read where a response ends.
    """
    from transformers import GenerationConfig

    tokenizer = load_tokenizer(source.adapter)
    ids = _read_ids(source.record, tokenizer)
    base = load(source.base, device="cpu", dtype="float32").model
    head = base.get_output_embeddings()
    rows = head.weight.shape[0]
    if max(ids) >= rows:
        raise ModelError(
            f"the base {source.base} has {rows} rows and none to spare for <CNF> (id {ids[0]}), so "
            "stock vLLM cannot load it as a LoRA; use --format merged"
        )
    if getattr(head, "bias", None) is not None:
        raise ModelError(
            f"the output head of {source.base} has a bias, which a LoRA cannot change for <CNF>; "
            "use --format merged"
        )
    name = next(name for name, module in base.named_modules() if module is head)
    trained_ED, kept, config = _trained(source, name)
    prefix = f"base_model.model.{name}"
    kept[f"{prefix}.lora_A.weight"], kept[f"{prefix}.lora_B.weight"] = _update(
        trained_ED - head.weight[list(ids)].detach(), ids, rows, config
    )
    config |= {
        "trainable_token_indices": None,
        "target_modules": sorted({*config["target_modules"], name}),
        "base_model_name_or_path": source.base,
    }
    save_file(dict(sorted(kept.items())), out / LORA_WEIGHTS, {"format": "pt"})
    (out / LORA_CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    tokenizer.save_pretrained(out)
    ends = end_ids(base, tokenizer, source.record)
    GenerationConfig(eos_token_id=ends).save_pretrained(out)


def _read_ids(record: dict[str, Any], tokenizer: Any) -> tuple[int, ...]:
    readout = find_readout(tokenizer)
    if readout is None or readout.head == "bins":
        raise ModelError(
            "the model reads ten bin tokens, and a LoRA can carry two rows; use --format merged"
        )
    if record["read_at"] == "feed":
        raise ModelError(
            "c is read at <CNF>'s own position (train.read_at=feed), which takes vLLM a second "
            "request; use --format merged with grace serve, or train with read_at=predict"
        )
    return readout.ids


def trained_rows(source: Source) -> Tensor | None:
    """Return the rows that are all of an adapter, (E, D), None where it has LoRA matrices too."""
    file = source.adapter / ROWS
    return load_file(file)["rows"].float() if file.is_file() else None


def _trained(source: Source, head: str) -> tuple[Tensor, dict[str, Tensor], dict[str, Any]]:
    """Return the head's rows that are read, (E, D), the LoRA's other matrices, and its config.

    With tied embeddings the rows are the embedding's.
    """
    if (rows_ED := trained_rows(source)) is not None:
        from peft import LoraConfig

        config = LoraConfig(r=len(rows_ED), lora_alpha=len(rows_ED), task_type="CAUSAL_LM")
        plain = json.loads(json.dumps(config.to_dict(), default=list))
        return rows_ED, {}, {**plain, "target_modules": []}
    weights = load_file(source.adapter / LORA_WEIGHTS)
    found = [key for key in weights if DELTA in key]
    own = [key for key in found if f".{head}." in key]
    kept = {key: tensor for key, tensor in weights.items() if DELTA not in key}
    record = json.loads((source.adapter / LORA_CONFIG).read_text(encoding="utf-8"))
    return weights[(own or found)[0]].float(), kept, record


def _update(
    change_ED: Tensor, ids: tuple[int, ...], rows: int, config: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """Return A (R, D) and B (V, R), zero but for a row and a column per token.

    Raises:
        ModelError: the LoRA's rank is too small for the rows.
    """
    rank, scale = config["r"], config["lora_alpha"] / config["r"]
    if rank < len(ids):
        raise ModelError(
            f"a LoRA of rank {rank} cannot carry {len(ids)} rows; use --format merged, or train "
            f"with train.rank={len(ids)}"
        )
    a_RD = torch.zeros(rank, change_ED.shape[1])
    b_VR = torch.zeros(rows, rank)
    for place, token in enumerate(ids):
        a_RD[place] = change_ED[place] / scale
        b_VR[token, place] = 1
    return a_RD, b_VR


def end_ids(model: Any, tokenizer: Any, record: dict[str, Any]) -> list[int]:
    """Return the ids that end a response; a pair, and what is read at the prompt, end nothing."""
    readout = find_readout(tokenizer)
    read = readout.ids if readout else ()
    ends = readout.ends if readout and record["read_at"] != "prompt" else ()
    return [*eos_ids(model, tokenizer, read, record.get("stop_ids", ())), *ends]


def _base_type(base: str) -> torch.dtype:
    from transformers import AutoConfig

    kind = getattr(AutoConfig.from_pretrained(base), "dtype", None)
    return kind if isinstance(kind, torch.dtype) else torch.float32
