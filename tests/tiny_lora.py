"""An adapter as training with LoRA writes it, whose matrices and rows are not at their start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch

from grace.cnf import add_cnf, trainable_rows
from grace.engines.transformers import TransformersEngine
from grace.evidence import Evidence

MODULES = {"phi3": ("down_proj",), "gpt_neox": ("dense_4h_to_h",)}


class Trained(NamedTuple):
    """A backbone with an adapter, and the engine of the trained model."""

    base: Path
    adapter: Path
    engine: TransformersEngine


def write(
    model: Any,
    tokenizer: Any,
    folder: Path,
    *,
    read_at: str = "predict",
    evidence: Evidence | None = None,
    modules: tuple[str, ...] = ("down_proj", "q_proj"),
    noise: float = 0.3,
    seed: int = 1,
    **changes: Any,
) -> Trained:
    """Write `base` and `adapter`; `changes` are those of grace.json."""
    import peft

    base, adapter = folder / "base", folder / "adapter"
    model.save_pretrained(base)
    tokenizer.save_pretrained(base)
    token = add_cnf(model, tokenizer)
    config = peft.LoraConfig(
        r=3,
        lora_alpha=5,
        task_type="CAUSAL_LM",
        target_modules=list(MODULES.get(model.config.model_type, modules)),
        trainable_token_indices=trainable_rows(model, token.readout),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # of the matrices A
        wrapped = peft.get_peft_model(model, config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for key, parameter in wrapped.named_parameters():
            if "lora_" in key or "trainable_tokens_delta" in key:
                parameter += noise * torch.randn(parameter.shape, generator=generator)
    wrapped.save_pretrained(adapter, save_embedding_layers=False)
    tokenizer.save_pretrained(adapter)
    record = {
        "schema_version": 1,
        "cnf_token": "<CNF>",
        "cnf_id": token.id,
        "read_at": read_at,
        "base_model": str(base),
        "rows": model.get_input_embeddings().weight.shape[0],
        "spare_row": token.spare_row,
        "evidence": evidence and evidence.to_dict(),
        "train": {"rank": 3, "target_modules": ["mlp"]},
        "data": {"task": "trivia_qa", "prompt": "short"},
    }
    (adapter / "grace.json").write_text(json.dumps(record | changes))
    engine = TransformersEngine(wrapped.eval(), tokenizer, read_at, evidence=evidence)  # type: ignore[arg-type]
    return Trained(base, adapter, engine)
