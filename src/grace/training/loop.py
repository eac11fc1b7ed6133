"""The training loop: a `transformers.Trainer` with the two-term loss over a fixed plan.

Shapes: B examples, P parts of the loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import SequentialSampler
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from grace.cnf import Readout
from grace.config import TrainSettings
from grace.errors import TrainingError
from grace.evidence import Evidence
from grace.training import checkpoints
from grace.training.adapter import load_weights, save_weights
from grace.training.examples import Example, collate
from grace.training.forward import losses
from grace.training.lora import is_row
from grace.training.plan import Plan
from grace.training.validation import evaluate

OnStep = Callable[[int, int, dict[str, float]], None]
SAVE_EVERY = 100
LOG_ROWS = 500
PARTS = ("loss", "calibration", "sft", "mean_c", "mean_log_c", "mean_target")


class GraceTrainer(Trainer):  # type: ignore[misc]
    """A `Trainer` over a fixed plan of micro-batches, with slim and atomic checkpoints."""

    def __init__(
        self,
        peft_model: Any,
        arguments: TrainingArguments,
        plan: Plan,
        validation: Sequence[Example],
        settings: TrainSettings,
        readout: Readout,
        pad_id: int,
    ) -> None:
        self.plan, self.validation, self.settings = plan, validation, settings
        self.readout, self.pad_id = readout, pad_id
        self.save_every = SAVE_EVERY
        self.on_step: OnStep | None = None
        self.evidence: Evidence | None = None
        self.end_ids: Sequence[int] = ()
        self.parts: list[Tensor] = []
        self.grad_norm: Tensor | None = None
        self._folder: Path | None = None
        super().__init__(
            model=peft_model,
            args=arguments,
            train_dataset=plan,
            data_collator=lambda items: dict(collate(items[0], readout, pad_id)),
            callbacks=[_Monitor(self)],
        )
        self.remove_callback(PrinterCallback)
        self.model_accepts_loss_kwargs = False
        if settings.gradient_checkpointing:
            set_activation_checkpointing(peft_model.get_base_model(), True)

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Return the weighted loss of a micro-batch and keep its parts for the log."""
        settings = self.settings
        terms = losses(
            model,
            inputs,
            self.readout,
            read_at=settings.read_at,
            loss=settings.loss,
            with_sft=settings.gamma > 0,
            cnf_in_sft=settings.cnf_in_sft,
            evidence=self.evidence,
            end_ids=self.end_ids,
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
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm  # of sharded weights
        mean_P = torch.stack(self.parts).mean(dim=0)
        mean_P = self.accelerator.reduce(mean_P, "mean")  # over the processes
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
            self.readout,
            self.pad_id,
            read_at=self.settings.read_at,
            evidence=self.evidence,
            end_ids=self.end_ids,
            batch_size=size,
        )

    def whole_weights(self) -> dict[str, Tensor] | None:
        """Return the weights of a model that is sharded over processes (all ask), else None."""
        return self.accelerator.get_state_dict(self.model) if self.is_fsdp_enabled else None

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
        if self.args.should_save:
            save_weights(self.model, Path(output_dir or self.args.output_dir), state=state_dict)

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
        if at_end and trainer.settings.keep == "best" and trainer.best_step() == step:
            state_dict = trainer.whole_weights()
            if args.should_save:
                checkpoints.save_best(Path(args.output_dir), step, trainer.model, state_dict)
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


def set_activation_checkpointing(model: Any, wanted: bool) -> None:
    """Switch recomputation of activations, under the name that this transformers version uses."""
    name = "activation_checkpointing"
    if not hasattr(model, f"{name}_enable"):
        name = "gradient_checkpointing"
    if wanted:
        getattr(model, f"{name}_enable")(**{f"{name}_kwargs": {"use_reentrant": False}})
    else:
        getattr(model, f"{name}_disable")()
