"""Training LoRA and the `<CNF>` row: checks, training, and the adapter that is written."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import set_seed

from grace.cnf import CnfTokens, count_rows
from grace.config import PaperSettings, to_dict
from grace.errors import TrainingError
from grace.methods.adapter import adapter_record, save_adapter
from grace.methods.paper import checkpoints
from grace.methods.paper.examples import Example
from grace.methods.paper.loop import Loop, OnStep
from grace.methods.paper.lora import add_lora, light_rows, set_activation_checkpointing, start_even

SAVE_EVERY = 100


def train_adapter(
    model: Any,
    tokenizer: Any,
    cnf: CnfTokens,
    examples: Sequence[Example],
    validation: Sequence[Example],
    settings: PaperSettings,
    *,
    seed: int,
    output_dir: Path,
    checkpoint_dir: Path,
    metadata: Mapping[str, Any],
    on_step: OnStep | None = None,
    save_every: int = SAVE_EVERY,
) -> list[dict[str, float]]:
    """Train LoRA and the `<CNF>` row of a model, resuming from the newest checkpoint if any.

    Returns the log. The model itself is not changed: its adapter is removed at the end. A run that
    is killed at any moment and started again writes the same bytes (same settings, same machine).

    Source: arXiv 2509.09438 section 3.2.3.
    """
    _check(model, examples, validation)
    set_seed(seed)
    required = [parameter.requires_grad for parameter in model.parameters()]
    record = adapter_record(
        model, count_rows(model), cnf, metadata, read_at=settings.read_at, paper=to_dict(settings)
    )
    peft_model = add_lora(model, cnf, settings)
    try:
        if settings.gradient_checkpointing:
            set_activation_checkpointing(model, True)
        if settings.read_at == "prompt":
            start_even(peft_model, cnf.readout, examples, cnf.id)
        with light_rows(peft_model, settings.read_at):
            pad_id = cnf.id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
            loop = Loop(
                peft_model,
                cnf.readout,
                pad_id,
                examples,
                validation,
                settings,
                seed=seed,
                root=checkpoint_dir,
            )
            main = loop.accelerator.is_main_process
            if main:
                checkpoints.claim(checkpoint_dir, settings, seed, cnf.id, examples)
            loop.accelerator.wait_for_everyone()
            try:
                loop.run(save_every, on_step)
            except torch.OutOfMemoryError:
                raise TrainingError(
                    f"out of memory at step {loop.step + 1}; set paper.micro_batch_size lower than "
                    f"{settings.micro_batch_size or settings.batch_size} or "
                    "paper.gradient_checkpointing=true and run again (it resumes)"
                ) from None
            state = loop.whole_weights()
            if main:
                save_adapter(loop.model, tokenizer, output_dir, record, loop.log, state)
            loop.accelerator.wait_for_everyone()
        return loop.log
    finally:
        set_activation_checkpointing(model, False)
        peft_model.unload()
        for parameter, flag in zip(model.parameters(), required, strict=True):
            parameter.requires_grad_(flag)
        model.eval()


def _check(model: Any, examples: Sequence[Example], validation: Sequence[Example]) -> None:
    if not examples:
        raise TrainingError(
            "no response ended with an end-of-sequence token, so there is nothing to train on; "
            "raise sample.max_new_tokens, or sample and grade some first"
        )
    limit = getattr(model.config, "max_position_embeddings", None) or math.inf
    longest = max((*examples, *validation), key=len)
    if len(longest) > limit:
        raise TrainingError(
            f"response {longest.id} has {len(longest)} tokens with its prompt, more than the "
            f"model's {limit}; shorten sample.max_new_tokens or the prompt"
        )
