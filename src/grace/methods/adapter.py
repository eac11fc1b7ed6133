"""Writing a trained adapter: small, in one rename, and the same bytes for the same training."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save as save_arrays
from safetensors.torch import load_file, save

from grace.cnf import TOKENS, CnfTokens
from grace.evidence import Evidence
from grace.methods.card import model_card
from grace.store import (
    CARD,
    CARD_VERSION,
    LORA_CONFIG,
    LORA_WEIGHTS,
    ROWS,
    replace_directory,
    write_json,
)

LOG = "training_log.jsonl"


def save_weights(
    peft_model: Any, directory: Path, base_model: str = "", state: dict[str, Any] | None = None
) -> None:
    """Write the LoRA matrices, the `<CNF>` rows and the PEFT config, without any full matrix."""
    peft_model.save_pretrained(directory, save_embedding_layers=False, state_dict=state)
    (directory / "README.md").unlink(missing_ok=True)
    tensors = load_file(directory / LORA_WEIGHTS)
    (directory / LORA_WEIGHTS).unlink()
    (directory / LORA_WEIGHTS).write_bytes(save(dict(sorted(tensors.items())), {"format": "pt"}))
    config = json.loads((directory / LORA_CONFIG).read_text(encoding="utf-8"))
    for key, value in config.items():
        if isinstance(value, list):
            config[key] = sorted(value)
    config["base_model_name_or_path"] = base_model or config["base_model_name_or_path"]
    write_json(directory / LORA_CONFIG, config)


def load_weights(peft_model: Any, directory: Path) -> None:
    """Load the weights that `save_weights` wrote into a model with the same adapter."""
    from peft import set_peft_model_state_dict

    set_peft_model_state_dict(peft_model, load_file(directory / LORA_WEIGHTS))


def save_adapter(
    peft_model: Any,
    tokenizer: Any,
    directory: Path,
    record: Mapping[str, Any],
    log: Sequence[Mapping[str, float]],
    state: dict[str, Any] | None = None,
) -> None:
    """Write the adapter directory: weights, tokenizer, grace.json, training log, model card."""

    def write_weights(partial: Path) -> None:
        save_weights(peft_model, partial, record["base_model"], state)
        lines = [json.dumps(row) + "\n" for row in log]
        (partial / LOG).write_text("".join(lines), encoding="utf-8")

    _write(directory, tokenizer, record, write_weights)


def save_rows(
    rows_ED: Any,
    tokenizer: Any,
    directory: Path,
    record: Mapping[str, Any],
    layer_rows_EH: Any = None,
    prompts: Mapping[str, Any] | None = None,
) -> None:
    """Write an adapter without LoRA, with rows that read a block's MLP, if the record names one."""
    rows = {"rows": rows_ED, **(prompts or {})}
    rows |= {} if layer_rows_EH is None else {"layer_rows": layer_rows_EH}
    data = save_arrays({name: np.ascontiguousarray(value) for name, value in rows.items()})
    _write(directory, tokenizer, record, lambda partial: (partial / ROWS).write_bytes(data))


def _write(
    directory: Path,
    tokenizer: Any,
    record: Mapping[str, Any],
    write_weights: Callable[[Path], Any],
) -> None:
    """Write the files of any adapter: its weights, tokenizer, grace.json and model card."""

    def fill(partial: Path) -> None:
        write_weights(partial)
        tokenizer.save_pretrained(partial)
        write_json(partial / CARD, record)
        (partial / "README.md").write_text(model_card(record), encoding="utf-8")

    replace_directory(directory, fill)


def adapter_record(
    model: Any,
    rows: int,
    cnf: CnfTokens,
    metadata: Mapping[str, Any],
    *,
    read_at: str = "predict",
    evidence: Evidence | None = None,
    **entries: Any,
) -> dict[str, Any]:
    """Return the content of grace.json; `rows` is the size that the vocabulary matrix needs."""
    from grace.engines.local.loading import config_ends

    return {
        "schema_version": CARD_VERSION,
        **_token_entries(cnf),
        "read_at": read_at,
        "base_model": str(model.config.name_or_path),
        "rows": rows,
        "spare_row": cnf.spare_row,
        "end_ids": list(config_ends(model)),
        "evidence": evidence.to_dict() if evidence else None,
        **entries,
        **metadata,
    }


def _token_entries(cnf: CnfTokens) -> dict[str, Any]:
    names, ids = TOKENS[cnf.readout.head], cnf.readout.ids
    if cnf.readout.head == "bins":
        return {"bin_tokens": dict(zip(names, ids, strict=True))}
    entries = {"cnf_token": names[0], "cnf_id": cnf.id}
    return entries if len(ids) == 1 else {**entries, "read_ids": list(ids)}
