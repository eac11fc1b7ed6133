"""Training LoRA and the `<CNF>` row: `transformers.Trainer` with the two-term loss.

Shapes: B examples, N validation examples.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import TrainingArguments, set_seed

from grace.cnf import CnfTokens
from grace.config import TrainSettings
from grace.errors import ConfigError, TrainingError
from grace.evidence import Evidence
from grace.training import checkpoints
from grace.training.adapter import adapter_record, load_weights, save_adapter
from grace.training.examples import Example
from grace.training.loop import (
    SAVE_EVERY,
    GraceTrainer,
    OnStep,
    set_activation_checkpointing,
)
from grace.training.lora import add_lora, light_rows
from grace.training.plan import make_plan
from grace.training.start import start_even

SCHEDULES = {"constant": "constant_with_warmup", "linear": "linear", "cosine": "cosine"}


class TrainResult(NamedTuple):
    """What training did: optimizer steps, the log's rows, and the step that was kept."""

    steps: int
    kept_step: int
    log: list[dict[str, float]]


def train_adapter(
    model: Any,
    tokenizer: Any,
    cnf: CnfTokens,
    examples: Sequence[Example],
    validation: Sequence[Example],
    settings: TrainSettings,
    *,
    seed: int,
    output_dir: Path,
    checkpoint_dir: Path,
    metadata: Mapping[str, Any],
    evidence: Evidence | None = None,
    end_ids: Sequence[int] = (),
    on_step: OnStep | None = None,
    save_every: int = SAVE_EVERY,
) -> TrainResult:
    """Train LoRA and the `<CNF>` row of a model, resuming from the newest checkpoint if any.

    The model is left as it came: base weights unchanged, adapter taken off. A run that is killed
    at any moment and started again writes the same bytes (same settings, same machine).

    Args:
        model: a causal language model with the row of `<CNF>`, on the device to train on.
        tokenizer: its tokenizer with `<CNF>`; saved beside the adapter.
        cnf: what `add_cnf` added, for the head that the settings name.
        examples: responses with their calibration targets.
        validation: responses whose `target` is 1 if they are correct and 0 if not.
        settings: see `TrainSettings`.
        seed: seed of LoRA's initial value, of the order and of dropout.
        output_dir: receives the adapter, written in one rename.
        checkpoint_dir: checkpoints and the best adapter so far.
        metadata: more entries for grace.json.
        evidence: how the response's own probabilities shift the logit of `<CNF>`, if at all.
        end_ids: what ends a response besides `<CNF>`; the evidence needs them.
        on_step: called after every optimizer step with its number, the number of all steps and
            the step's values.
        save_every: optimizer steps between checkpoints; each epoch's end has one too.

    Raises:
        TrainingError: no examples, an example that is too long, a loss or gradient that is not
            finite, or not enough memory; the last good checkpoint is kept.
        ConfigError: settings that this model or this data cannot serve.
        RunError: checkpoints made with other settings or other examples.
    Source: arXiv 2509.09438 section 3.2.3.
    """
    _check_reading(cnf, settings, evidence)
    _check(model, examples, validation, settings)
    set_seed(seed)
    config_cache = model.config.use_cache
    required = [parameter.requires_grad for parameter in model.parameters()]
    record = adapter_record(model, cnf, settings, metadata, evidence)
    peft_model = add_lora(model, cnf, settings)
    try:
        if settings.read_at == "prompt" and settings.head == "token":
            start_even(peft_model, cnf.readout, examples, cnf.id)
        with light_rows(peft_model, settings.read_at):
            trainer = _make_trainer(
                peft_model, tokenizer, cnf, examples, validation, settings, seed, checkpoint_dir
            )
            trainer.save_every, trainer.on_step = save_every, on_step
            trainer.evidence, trainer.end_ids = evidence, end_ids
            if trainer.args.should_save:
                checkpoints.claim(checkpoint_dir, settings, seed, cnf.id, examples, evidence)
            trainer.accelerator.wait_for_everyone()
            _run(trainer, checkpoints.newest(checkpoint_dir))
            kept = trainer.state.global_step
            if settings.keep == "best":
                kept = trainer.best_step() or kept
                load_weights(peft_model, checkpoints.best_dir(checkpoint_dir, kept))
            state = trainer.whole_weights()
            if trainer.args.should_save:
                save_adapter(peft_model, tokenizer, output_dir, record, trainer.rows(), state)
            trainer.accelerator.wait_for_everyone()
        return TrainResult(trainer.state.global_step, kept, trainer.rows())
    finally:
        set_activation_checkpointing(model, False)
        peft_model.unload()
        model.config.use_cache = config_cache
        for parameter, flag in zip(model.parameters(), required, strict=True):
            parameter.requires_grad_(flag)
        model.eval()


def _check_reading(cnf: CnfTokens, settings: TrainSettings, evidence: Evidence | None) -> None:
    if cnf.readout.head != settings.head:
        raise ConfigError(
            f"train.head is {settings.head}, but the model has the rows of {cnf.readout.head}; "
            f"call add_cnf with head={settings.head!r}"
        )
    if evidence is not None:
        dataclasses.replace(settings, evidence="likelihood")  # refuses what it cannot go with


def _check(
    model: Any,
    examples: Sequence[Example],
    validation: Sequence[Example],
    settings: TrainSettings,
) -> None:
    if not examples or not any(example.weight > 0 for example in examples):
        raise TrainingError(
            "there is no response that came to its own end, so nothing to train on; raise "
            "sample.max_new_tokens, or sample and grade some first"
        )
    if settings.keep == "best" and not validation:
        raise ConfigError("train.keep is best, which needs validation responses; use keep=last")
    limit = getattr(model.config, "max_position_embeddings", None) or math.inf
    longest = max((*examples, *validation), key=len)
    if len(longest) > limit:
        raise TrainingError(
            f"response {longest.id} has {len(longest)} tokens with its prompt, more than the "
            f"model's {limit}; shorten sample.max_new_tokens or the prompt"
        )
    bad = [item.id for item in examples if not 0 <= item.target <= 1 or not item.weight >= 0]
    if bad:
        raise TrainingError(f"the target or weight of response {bad[0]} is not in [0, 1]")


def _make_trainer(
    peft_model: Any,
    tokenizer: Any,
    cnf: CnfTokens,
    examples: Sequence[Example],
    validation: Sequence[Example],
    settings: TrainSettings,
    seed: int,
    checkpoint_dir: Path,
) -> GraceTrainer:
    use_cpu = next(peft_model.parameters()).device.type == "cpu"
    processes = TrainingArguments(output_dir=str(checkpoint_dir), use_cpu=use_cpu).world_size
    plan = make_plan(examples, settings, seed=seed, processes=processes)
    total = len(plan.steps)
    try:
        arguments = TrainingArguments(
            output_dir=str(checkpoint_dir),
            max_steps=total,
            per_device_train_batch_size=1,
            gradient_accumulation_steps=plan.accumulation,
            learning_rate=settings.learning_rate,
            weight_decay=settings.weight_decay,
            max_grad_norm=settings.max_grad_norm,
            lr_scheduler_type=SCHEDULES[settings.schedule],
            warmup_steps=round(settings.warmup * total),
            seed=seed,
            use_cpu=use_cpu,
            report_to=settings.report_to,
            disable_tqdm=True,
            save_strategy="no",
            logging_strategy="no",
            logging_nan_inf_filter=False,
            remove_unused_columns=False,
            label_names=["target"],
            dataloader_pin_memory=False,
            ddp_find_unused_parameters=False,
        )
        arguments._n_gpu = min(arguments.n_gpu, 1)
        pad = tokenizer.pad_token_id
        return GraceTrainer(
            peft_model,
            arguments,
            plan,
            validation,
            settings,
            cnf.readout,
            cnf.id if pad is None else pad,
        )
    except RuntimeError as error:
        if settings.report_to == "none":
            raise
        raise ConfigError(f"train.report_to {settings.report_to!r} cannot start: {error}") from None


def _run(trainer: GraceTrainer, checkpoint: Path | None) -> None:
    step = "0"
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*lr_scheduler.step.*")
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    except torch.OutOfMemoryError:
        step = str(trainer.state.global_step + 1)
        raise TrainingError(
            f"out of memory at step {step}; set train.micro_batch_size lower than "
            f"{trainer.settings.micro_batch_size or trainer.settings.batch_size} or "
            "train.gradient_checkpointing=true and run again (it resumes)"
        ) from None
