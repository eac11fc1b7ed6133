"""Load a trained adapter onto its base model: LoRA with vocabulary rows, or rows alone."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grace.cnf import Readout, clear_bias, count_rows, find_readout, set_rows
from grace.engines.local.layers import LayerRows, PromptEnds, mlp_output
from grace.errors import ModelError, first_line
from grace.evidence import Evidence
from grace.store import AGAIN, CARD, LORA_CONFIG, ROWS, read_object

PROMPT_ENDS = ("prompt_mean", "prompt_spread")  # names of tensors
OWN_ROWS = "own_rows"  # likewise, of the rows of each source's own


def read_rows(adapter: Path) -> Tensor:
    """Return the rows (E, D) of an adapter without LoRA."""
    tensors = read_tensors(adapter / ROWS)
    if "rows" not in tensors:
        raise ModelError(f"{adapter / ROWS} has no rows; {AGAIN}")
    return tensors["rows"].float()


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file by name."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors: dict[str, Tensor] = load_file(file)
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{file} cannot be read ({first_line(error)}); {AGAIN}") from error
    return tensors


def put_rows(model: Any, adapter: Path, tokenizer: Any, layer: int) -> LayerRows | None:
    """Put the rows of an adapter without LoRA into the output head."""
    readout, rows_ED = find_readout(tokenizer), read_rows(adapter)
    width = model.get_output_embeddings().weight.shape[1]
    if readout is None or rows_ED.shape != (len(readout.ids), width):
        raise ModelError(
            f"{adapter / ROWS} has the shape {tuple(rows_ED.shape)}, which does not fit the base "
            f"model's hidden size of {width}; use the model that it was fitted on"
        )
    set_rows(model, readout, rows_ED)
    return read_layer_rows(adapter, model, layer) if layer else None


def read_layer_rows(adapter: Path, model: Any, layer: int) -> LayerRows:
    """Return the rows with which an adapter reads the MLP of a block."""
    output = mlp_output(model, layer)
    rows_EH = read_tensors(adapter / ROWS).get("layer_rows")
    if rows_EH is None or rows_EH.shape[-1] != output.in_features:
        raise ModelError(
            f"{adapter / ROWS} has no rows for the MLP of block {layer}, of width "
            f"{output.in_features}; use the model that it was fitted on, or {AGAIN}"
        )
    return LayerRows(layer, rows_EH.float().to(output.weight.device))


def read_prompt_ends(
    adapter: Path, model: Any, manifest: dict[str, Any], evidence: Evidence | None
) -> PromptEnds | None:
    """Return what the ends of the training prompts were like, if the adapter says so."""
    layer, layers = manifest.get("prompt_layer", 0), manifest.get("own_layers", [])
    rated = (evidence, *evidence.fields.values()) if evidence else ()
    own = {len(one.familiar.own) for one in rated if one.familiar}
    if not (layer or any(own)):
        return None
    tensors = read_tensors(adapter / ROWS)
    names = (*PROMPT_ENDS, OWN_ROWS) if layers else PROMPT_ENDS
    parts = [tensors[name].float() for name in names if name in tensors]
    width = mlp_output(model, layer).in_features if layer else 0
    sizes = [(len(part), part.shape[-1]) for part in parts]
    sources = len(layers) or len(parts and parts[0])
    if sizes != [(sources, width)] * len(names) or own - {len(layers)}:
        raise ModelError(
            f"{adapter / ROWS} does not say what {CARD} needs of the prompts of training; use the "
            f"model that it was fitted on, or {AGAIN}"
        )

    def beside(block: int, part: Tensor) -> Tensor:
        return part.to(mlp_output(model, block).weight.device)

    mean_SH, spread_SH = (beside(layer, one) for one in parts[:2])
    at_S = torch.tensor(layers)[:, None, None]
    rows = [(block, beside(block, parts[2] * (at_S == block))) for block in sorted({*layers})]
    return PromptEnds(layer, mean_SH, spread_SH, tuple(rows))


def load_adapter(
    model: Any, adapter: Path, manifest: dict[str, Any], readout: Readout | None
) -> Any:
    """Return the model with an adapter, merged if in float32; rows without LoRA come later."""
    rows_only = (adapter / ROWS).is_file()
    if not rows_only and not (adapter / LORA_CONFIG).is_file():
        raise ModelError(f"{adapter} has no {LORA_CONFIG}; give a trained adapter directory")
    if not rows_only:
        check_peft(adapter / LORA_CONFIG)
    if "rows" not in manifest:
        raise ModelError(f"{adapter} has no 'rows' in {CARD}; export the adapter again")
    rows, have = manifest["rows"], count_rows(model)
    if have > rows:
        raise ModelError(
            f"the base model has {have} rows, but adapter {adapter} was trained on {rows}; "
            f"use its base model {manifest.get('base_model', '(not recorded)')}"
        )
    if have < rows:
        with torch.random.fork_rng(devices=[]):
            model.resize_token_embeddings(rows, mean_resizing=False)
    if rows_only:
        return model
    from peft import PeftModel

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
            warnings.filterwarnings("error", "Found missing adapter keys")
            if readout is not None:
                clear_bias(model, readout)
            model = PeftModel.from_pretrained(model, adapter)
    except Exception as error:  # peft raises many kinds here
        raise ModelError(
            f"adapter {adapter} does not fit the base model ({first_line(error)}); "
            f"use its base model {manifest.get('base_model', '(not recorded)')}"
        ) from error
    exact = all(p.dtype == torch.float32 for p in model.parameters() if p.is_floating_point())
    return model.merge_and_unload() if exact else model


def check_peft(file: Path) -> None:
    """Refuse an adapter_config.json that would make peft import a module."""
    config = read_object(file)
    if config.get("megatron_config"):
        raise ModelError(
            f"{file} is for Megatron and would import {config.get('megatron_core')!r}; use an "
            "adapter that `grace` has trained"
        )
