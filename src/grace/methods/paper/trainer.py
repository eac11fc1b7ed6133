"""Training LoRA and the `<CNF>` row: checks, the training itself, and the adapter that is written.

Shapes: B examples or prompts, N validation examples, D hidden size, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import set_seed

from grace.cnf import CnfTokens, Readout, count_rows, without
from grace.config import PaperSettings, to_dict
from grace.errors import TrainingError
from grace.methods.adapter import adapter_record, save_adapter
from grace.methods.paper import checkpoints
from grace.methods.paper.examples import Example, TrainingBatch, collate, to_device
from grace.methods.paper.loop import Loop, OnStep
from grace.methods.paper.lora import add_lora, light_rows, set_activation_checkpointing
from grace.methods.paper.loss import forward_logits

SAVE_EVERY = 100
PROMPTS, AT_ONCE = 1024, 16
RIDGE = 0.1
"""Ridge penalty, as a share of the mean squared length of the states."""


class TrainResult(NamedTuple):
    """The number of optimizer steps, and the rows of the log."""

    steps: int
    log: list[dict[str, float]]


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
) -> TrainResult:
    """Train LoRA and the `<CNF>` row of a model, resuming from the newest checkpoint if any.

    The model itself is not changed: its adapter is removed at the end. A run that is killed at any
    moment and started again writes the same bytes (same settings, same machine).

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
            _run(loop, save_every, on_step)
            state = loop.whole_weights()
            if main:
                save_adapter(loop.model, tokenizer, output_dir, record, loop.log, state)
            loop.accelerator.wait_for_everyone()
        return TrainResult(loop.step, loop.log)
    finally:
        set_activation_checkpointing(model, False)
        peft_model.unload()
        for parameter, flag in zip(model.parameters(), required, strict=True):
            parameter.requires_grad_(flag)
        model.eval()


def _check(
    model: Any,
    examples: Sequence[Example],
    validation: Sequence[Example],
) -> None:
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


def _run(loop: Loop, save_every: int, on_step: OnStep | None) -> None:
    try:
        loop.run(save_every, on_step)
    except torch.OutOfMemoryError:
        raise TrainingError(
            f"out of memory at step {loop.step + 1}; set paper.micro_batch_size lower than "
            f"{loop.settings.micro_batch_size or loop.settings.batch_size} or "
            "paper.gradient_checkpointing=true and run again (it resumes)"
        ) from None


@torch.no_grad()
def start_even(peft_model: Any, readout: Readout, examples: Sequence[Example], pad_id: int) -> None:
    """Initialise the output row of `<CNF>` so that c is about 1/2 at the end of a prompt.

    There neither the row of EOS nor the mean row of the vocabulary would do: c would start below
    one in a million, where (t - c)^2 has no gradient, and stay there.

    The row is a ridge regression of the logit that makes c 1/2 on the hidden states at the ends of
    some prompts, so that c is near 1/2 at each of them, not only on average. Its length is then
    adjusted through the whole model, as a model may scale its logits.
    """
    head = peft_model.get_base_model().get_output_embeddings()
    (row_1D,) = head.token_adapter.trainable_tokens_delta.values()
    prompts = [dataclasses.replace(item, response_ids=()) for item in examples[:PROMPTS]]
    parts = [prompts[at : at + AT_ONCE] for at in range(0, len(prompts), AT_ONCE)]
    batches = [collate(part, readout, pad_id) for part in parts]
    seen: list[Tensor] = []
    hook = head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0][:, -1].float()))
    logits_BV = _last_logits(peft_model, batches)
    hook.remove()
    states_BD = torch.cat(seen)
    rest_B = without(logits_BV, readout).logsumexp(dim=-1)
    row_1D.copy_(_ridge(states_BD, rest_B))
    logits_BV = _last_logits(peft_model, batches)
    row_1D.mul_(rest_B.mean() / logits_BV[:, readout.ids[0]].mean())


def _ridge(states_BD: Tensor, logits_B: Tensor) -> Tensor:
    """Return the row (D,) whose products with the states are close to these logits."""
    gram_BB = states_BD @ states_BD.T
    gram_BB.diagonal().add_(RIDGE * gram_BB.diagonal().mean())
    row_D: Tensor = states_BD.T @ torch.linalg.solve(gram_BB, logits_B)
    return row_D


def _last_logits(peft_model: Any, batches: Sequence[TrainingBatch]) -> Tensor:
    peft_model.eval()
    device = next(peft_model.parameters()).device
    logits = []
    for batch in batches:
        length = batch["input_ids"].shape[1] - 1  # without <CNF>
        logits_B1V = forward_logits(peft_model, to_device(batch, device), length, 1)
        logits.append(logits_B1V[:, -1].float())
    return torch.cat(logits)
