"""Training LoRA and the `<CNF>` row: `transformers.Trainer` with the two-term loss.

Shapes: B examples, N validation examples.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import SequentialSampler
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_callback import PrinterCallback

from grace.cnf import CnfToken
from grace.config import TrainSettings
from grace.errors import ConfigError, TrainingError
from grace.evidence import Evidence
from grace.training import checkpoints
from grace.training.adapter import adapter_record, load_weights, save_adapter, save_weights
from grace.training.examples import Example, collate
from grace.training.forward import losses
from grace.training.lora import add_lora, is_row, light_rows
from grace.training.plan import Plan, make_plan
from grace.training.validation import evaluate

OnStep = Callable[[int, int, dict[str, float]], None]
SAVE_EVERY = 100
LOG_ROWS = 500
PARTS = ("loss", "calibration", "sft", "mean_c", "mean_log_c", "mean_target")
SCHEDULES = {"constant": "constant_with_warmup", "linear": "linear", "cosine": "cosine"}


class TrainResult(NamedTuple):
    """What training did: optimizer steps, the log's rows, and the step that was kept."""

    steps: int
    kept_step: int
    log: list[dict[str, float]]


def train_adapter(
    model: Any,
    tokenizer: Any,
    cnf: CnfToken,
    examples: Sequence[Example],
    validation: Sequence[Example],
    settings: TrainSettings,
    *,
    seed: int,
    output_dir: Path,
    checkpoint_dir: Path,
    metadata: Mapping[str, Any],
    evidence: Evidence | None = None,
    on_step: OnStep | None = None,
    save_every: int = SAVE_EVERY,
) -> TrainResult:
    """Train LoRA and the `<CNF>` row of a model, resuming from the newest checkpoint if any.

    The model is left as it came: base weights unchanged, adapter taken off. A run that is killed
    at any moment and started again writes the same bytes (same settings, same machine).

    Args:
        model: a causal language model that has the `<CNF>` row, on the device to train on.
        tokenizer: its tokenizer with `<CNF>`; saved beside the adapter.
        cnf: where `<CNF>` lives.
        examples: responses with their calibration targets.
        validation: responses whose `target` is 1 if they are correct and 0 if not.
        settings: see `TrainSettings`.
        seed: seed of LoRA's initial value, of the order and of dropout.
        output_dir: receives the adapter, written in one rename.
        checkpoint_dir: checkpoints and the best adapter so far.
        metadata: more entries for grace.json.
        evidence: how the response's own probabilities shift the logit of `<CNF>`, if at all.
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
    _check(model, examples, validation, settings)
    set_seed(seed)
    config_cache = model.config.use_cache
    required = [parameter.requires_grad for parameter in model.parameters()]
    record = adapter_record(model, cnf, settings, metadata, evidence)
    peft_model = add_lora(model, cnf, settings)
    try:
        with light_rows(peft_model, settings.read_at):
            trainer = _make_trainer(
                peft_model, tokenizer, cnf, examples, validation, settings, seed, checkpoint_dir
            )
            trainer.save_every, trainer.on_step, trainer.evidence = save_every, on_step, evidence
            checkpoints.claim(checkpoint_dir, settings, seed, cnf.id, examples)
            _run(trainer, checkpoints.newest(checkpoint_dir))
            kept = trainer.state.global_step
            if settings.keep == "best":
                kept = trainer.best_step() or kept
                load_weights(peft_model, checkpoints.best_dir(checkpoint_dir, kept))
            if trainer.args.should_save:
                save_adapter(peft_model, tokenizer, output_dir, record, trainer.rows())
        return TrainResult(trainer.state.global_step, kept, trainer.rows())
    finally:
        _set_activation_checkpointing(model, False)
        peft_model.unload()
        model.config.use_cache = config_cache
        for parameter, flag in zip(model.parameters(), required, strict=True):
            parameter.requires_grad_(flag)
        model.eval()


def _check(
    model: Any,
    examples: Sequence[Example],
    validation: Sequence[Example],
    settings: TrainSettings,
) -> None:
    if not examples or not any(example.weight > 0 for example in examples):
        raise TrainingError("there are no responses to train on; sample and grade some first")
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
    cnf: CnfToken,
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
            cnf.id,
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


class GraceTrainer(Trainer):  # type: ignore[misc]
    """A `Trainer` over a fixed plan of micro-batches, with slim and atomic checkpoints."""

    def __init__(
        self,
        peft_model: Any,
        arguments: TrainingArguments,
        plan: Plan,
        validation: Sequence[Example],
        settings: TrainSettings,
        cnf_id: int,
        pad_id: int,
    ) -> None:
        self.plan, self.validation, self.settings = plan, validation, settings
        self.cnf_id, self.pad_id = cnf_id, pad_id
        self.save_every = SAVE_EVERY
        self.on_step: OnStep | None = None
        self.evidence: Evidence | None = None
        self.parts: list[Tensor] = []
        self.grad_norm: Tensor | None = None
        self._folder: Path | None = None
        super().__init__(
            model=peft_model,
            args=arguments,
            train_dataset=plan,
            data_collator=lambda items: dict(collate(items[0], cnf_id, pad_id)),
            callbacks=[_Monitor(self)],
        )
        self.remove_callback(PrinterCallback)
        self.model_accepts_loss_kwargs = False
        if settings.gradient_checkpointing:
            _set_activation_checkpointing(peft_model.get_base_model(), True)

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Return the weighted loss of a micro-batch and keep its parts for the log."""
        settings = self.settings
        terms = losses(
            model,
            inputs,
            self.cnf_id,
            read_at=settings.read_at,
            loss=settings.loss,
            with_sft=settings.gamma > 0,
            evidence=self.evidence,
        )
        loss_B = terms.calibration + settings.gamma * terms.sft
        shown = (loss_B, terms.calibration, terms.sft, terms.log_c.exp(), terms.log_c)
        columns_PB = torch.stack([*shown, inputs["target"]]).detach()
        self.parts.append(columns_PB @ inputs["weight"])
        loss: Tensor = (loss_B * inputs["weight"]).sum()
        return loss

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """AdamW with a group of its own for the `<CNF>` rows, which never decay."""
        if self.optimizer is None:
            named = [item for item in self.model.named_parameters() if item[1].requires_grad]
            lora = [parameter for name, parameter in named if not is_row(name)]
            rows = [parameter for name, parameter in named if is_row(name)]
            rate = self.settings.learning_rate
            row_rate = self.settings.row_learning_rate or rate
            groups = [
                {"params": lora, "lr": rate, "weight_decay": self.settings.weight_decay},
                {"params": rows, "lr": row_rate, "weight_decay": 0.0},
            ]
            self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(groups, lr=rate)
        return self.optimizer

    def step_values(self) -> dict[str, float]:
        """Return the values of the step whose gradients are ready.

        Raises:
            TrainingError: the loss or the gradient is not finite.
        """
        norm = self.grad_norm
        if norm is None:
            trained = [p.grad for p in self.model.parameters() if p.grad is not None]
            norm = torch.nn.utils.get_total_norm(trained)
        mean_P = torch.stack(self.parts).mean(dim=0)
        values = torch.cat([mean_P, torch.as_tensor(norm, device=mean_P.device).reshape(1)])
        named = dict(zip((*PARTS, "grad_norm"), values.tolist(), strict=True))
        self.parts, self.grad_norm = [], None
        step = self.state.global_step + 1
        for name in ("loss", "grad_norm"):
            if not math.isfinite(named[name]):
                raise TrainingError(
                    f"{name} is {named[name]} at step {step} of {self.state.max_steps}; the last "
                    "good checkpoint is kept: lower train.learning_rate, or use float32"
                )
        return named

    def validate(self) -> dict[str, float]:
        """Return c and the calibration of the validation responses (empty without any)."""
        if not self.validation:
            return {}
        size = self.settings.micro_batch_size or self.settings.batch_size
        return evaluate(
            self.model,
            self.validation,
            self.cnf_id,
            self.pad_id,
            read_at=self.settings.read_at,
            evidence=self.evidence,
            batch_size=size,
        )

    def best_step(self) -> int | None:
        """Return the step with the smallest validation Brier score so far, step 0 apart."""
        scored = [row for row in self.rows() if "eval_brier" in row and row["step"]]
        best = min(scored, key=lambda row: row["eval_brier"], default=None)
        return None if best is None else int(best["step"])

    def rows(self) -> list[dict[str, float]]:
        """Return the training log in a fixed order, without the library's summary of speed."""
        rows = [row for row in self.state.log_history if "train_runtime" not in row]
        return [{"step": row["step"], **dict(sorted(row.items()))} for row in rows]

    def floating_point_ops(self, inputs: Any) -> int:
        """Skip the library's estimate, which walks over all parameters at every step."""
        return 0

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        self.grad_norm = super()._get_grad_norm(model, grad_norm=grad_norm)
        return self.grad_norm

    def _get_train_sampler(self, train_dataset: Any = None) -> SequentialSampler:
        return SequentialSampler(self.plan)

    def _get_output_dir(self, trial: Any = None) -> str:
        return str(self._folder or self.args.output_dir)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        save_weights(self.model, Path(output_dir or self.args.output_dir))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        load_weights(self.model, Path(resume_from_checkpoint))

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        root = Path(self.args.output_dir)
        self._folder = checkpoints.staging(root)
        super()._save_checkpoint(model, trial)
        self._folder = None
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            best = self.best_step() if self.settings.keep == "best" else None
            checkpoints.commit(root, self.state.global_step, best)
        self.accelerator.wait_for_everyone()


class _Monitor(TrainerCallback):  # type: ignore[misc]
    """Checks every step, logs, validates at the end of every epoch and asks for checkpoints."""

    def __init__(self, trainer: GraceTrainer) -> None:
        self.trainer = trainer
        self.values: dict[str, float] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 0:
            state.epoch = 0.0
            self.trainer.log({**self.trainer.validate()})

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.values = self.trainer.step_values()
        groups = self.trainer.optimizer.param_groups
        self.values["learning_rate"] = groups[0]["lr"]

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        trainer, step = self.trainer, state.global_step
        ends = trainer.plan.epoch_ends
        at_end = step in ends
        state.epoch = _epoch(step, ends)
        values = dict(self.values)
        if at_end:
            values |= trainer.validate()
        if at_end or step % max(1, state.max_steps // LOG_ROWS) == 0:
            trainer.log(dict(values))
        keep_best = at_end and trainer.settings.keep == "best" and args.should_save
        if keep_best and trainer.best_step() == step:
            checkpoints.save_best(Path(args.output_dir), step, trainer.model)
        control.should_save = at_end or step % trainer.save_every == 0
        if trainer.on_step is not None:
            trainer.on_step(step, state.max_steps, values)


def _epoch(step: int, ends: Sequence[int]) -> float:
    """Return how many epochs are done after `step` steps."""
    start = 0
    for number, end in enumerate(ends):
        if step <= end:
            return number + (step - start) / (end - start)
        start = end
    return float(len(ends))


def _set_activation_checkpointing(model: Any, wanted: bool) -> None:
    """Switch recomputation of activations, under the name that this transformers version uses."""
    name = "activation_checkpointing"
    if not hasattr(model, f"{name}_enable"):
        name = "gradient_checkpointing"
    if wanted:
        getattr(model, f"{name}_enable")(**{f"{name}_kwargs": {"use_reentrant": False}})
    else:
        getattr(model, f"{name}_disable")()
