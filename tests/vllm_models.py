"""Tiny trained models that vLLM can run on a CPU (its attention wants heads of 32 or more)."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import tiny_models
from grace.export import export_model
from made_up_evidence import EVIDENCE, TRACE
from tiny_lora import write

SPARE_ROWS = 7
SEED = 7  # with it most greedy answers end, some are cut


def write_base(folder: Path, *, tied: bool, kind: str = "llama") -> Any:
    """Save a random model with a padded vocabulary and its tokenizer; return the model."""
    tokenizer = tiny_models.tokenizer()
    config = transformers.AutoConfig.for_model(
        kind,
        head_dim=128 if kind == "qwen3" else 32,  # as those of all Qwen 3
        vocab_size=len(tokenizer) + SPARE_ROWS,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
        initializer_range=0.25,
        tie_word_embeddings=tied,
        bos_token_id=1,
        eos_token_id=3,
        pad_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        with torch.no_grad():
            model.get_output_embeddings().weight[3] *= 1.5
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model


def write_trained(folder: Path, *, tied: bool, read_at: str = "predict") -> Path:
    """Write `base`, `adapter` and every export of it that vLLM takes; return the folder."""
    model, tokenizer = write_base(folder / "base", tied=tied), tiny_models.tokenizer()
    how: dict[str, Any] = {"evidence": EVIDENCE} if read_at == "predict" else {}
    _, adapter, _ = write(model, tokenizer, folder, read_at=read_at, noise=0.1, seed=SEED, **how)
    for form in ("merged", "vllm-lora"):
        export_model(adapter, adapter, str(folder / "base"), folder / form, form=form)
    return folder


def write_fitted(folder: Path, layer: int = 0, kind: str = "llama") -> Path:
    """Write `base`, an adapter of rows without LoRA, and its export; return the folder.

    The rows read the MLP of a block, if one is named.
    """
    from grace.engines.local.layers import mlp_output
    from grace.engines.transformers import TransformersEngine
    from grace.pipeline.stages.fit import write_rows_adapter

    write_base(folder / "base", tied=False, kind=kind)
    rows = np.random.default_rng(0).normal(scale=0.3, size=(4, 64)).astype(np.float32)
    evidence = dataclasses.replace(
        EVIDENCE, low=(-9.0,) * 8, high=(4.0,) * 8, limit=6.0, trace=TRACE
    )
    adapter = folder / "adapter"
    metadata = {"base_model": str(folder / "base"), "data": {"task": "jsonl", "prompt": "short"}}
    engine, middle = TransformersEngine.load(folder / "base"), None
    if layer:
        width = mlp_output(engine.model, layer).in_features
        middle_EH = np.random.default_rng(1).normal(scale=0.3, size=(4, width))
        middle = (layer, middle_EH.astype(np.float32))
    write_rows_adapter(engine, rows, evidence, adapter, metadata, middle)
    export_model(adapter, adapter, str(folder / "base"), folder / "merged")
    return folder


def write_all(places: Any) -> dict[str, Path]:
    """Write a trained model of each kind of head, and a fitted one; `places` makes folders."""
    made = {
        head: write_trained(places.mktemp(head), tied=head == "tied") for head in ("tied", "untied")
    }
    return made | {"pair": write_fitted(places.mktemp("pair"))}


def prompts(count: int = 12) -> list[list[int]]:
    """Return prompts of ragged lengths."""
    return tiny_models.prompts(tiny_models.tokenizer(), count)
