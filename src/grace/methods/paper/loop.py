"""The training loop on Accelerate: forward, backward, step, log, validate, checkpoint.

Shapes: B examples, P parts of the loss.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.tracking import get_available_trackers
from accelerate.utils import GradientAccumulationPlugin
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import get_scheduler, set_seed

from grace.cnf import Readout
from grace.config import PaperSettings, to_dict
from grace.errors import ConfigError, TrainingError
from grace.methods.adapter import load_weights, save_weights
from grace.methods.paper import checkpoints
from grace.methods.paper.examples import Example, TrainingBatch, collate, make_plan, to_device
from grace.methods.paper.lora import is_row
from grace.methods.paper.loss import calibration_of, log_confidences, losses
from grace.progress import say

OnStep = Callable[[int, int, dict[str, float]], None]
LogRow = dict[str, float]
LOG_ROWS = 500
MAX_GRAD_NORM = 1.0
PARTS = ("loss", "calibration", "sft", "mean_c", "mean_log_c", "mean_target")


class Loop:
    """One training run: the model, the planned steps, and the state of training.

    `model` is the PEFT model; `wrapped` is the same model as Accelerate prepared it, which
    averages gradients over the processes (DDP) or shards the weights (FSDP2).
    """

    def __init__(
        self,
        peft_model: Any,
        readout: Readout,
        pad_id: int,
        examples: Sequence[Example],
        validation: Sequence[Example],
        settings: PaperSettings,
        *,
        seed: int,
        root: Path,
    ) -> None:
        self.readout, self.pad_id, self.settings, self.root = readout, pad_id, settings, root
        self.validation, self.step, self.log = validation, 0, list[LogRow]()
        tracker = None if settings.report_to == "none" else settings.report_to
        if tracker and tracker not in map(str, get_available_trackers()):
            raise ConfigError(f"paper.report_to={tracker} needs a package: pip install {tracker}")
        self.accelerator = Accelerator(
            cpu=next(peft_model.parameters()).device.type == "cpu",
            gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=1),  # in `_take_step`
            log_with=tracker,
            project_dir=root,
        )
        processes = self.accelerator.num_processes
        self.plan = make_plan(examples, settings, seed=seed, processes=processes)
        set_seed(seed)
        optimizer = torch.optim.AdamW(_groups(peft_model, settings))
        self.wrapped, self.optimizer = self.accelerator.prepare(peft_model, optimizer)
        self.model = self.accelerator.unwrap_model(self.wrapped)
        self.schedule = get_scheduler("linear", self.optimizer, 0, len(self.plan.steps))

    def run(self, save_every: int, on_step: OnStep | None = None) -> None:
        """Take all steps that are left, after those of the newest checkpoint if there is one."""
        total, ends = len(self.plan.steps), self.plan.epoch_ends
        batches = self._resume()
        shown = {k: str(v) if isinstance(v, list) else v for k, v in to_dict(self.settings).items()}
        self.accelerator.init_trackers("grace", shown)
        if self.step == 0:
            if self.validation:
                say(f"train: rating {len(self.validation)} validation responses before step 1")
            self._note(self._validate())
        while self.step < total:
            values = self._take_step(batches)
            self.step += 1
            at_end = self.step in ends
            if at_end:
                values |= self._validate()
            if at_end or self.step % max(1, total // LOG_ROWS) == 0:
                self._note(values)
            if on_step is not None:
                on_step(self.step, total, values)
            if at_end or self.step % save_every == 0:
                self._save()
        for tracker in self.accelerator.trackers:
            tracker.finish()

    def whole_weights(self) -> dict[str, Tensor] | None:
        """Return the weights of a model that is sharded over processes, else None."""
        sharded = checkpoints.sharding(self.accelerator) is not None
        return self.accelerator.get_state_dict(self.wrapped) if sharded else None

    def _take_step(self, batches: Iterator[TrainingBatch]) -> dict[str, float]:
        self.wrapped.train()
        parts: list[Tensor] = []
        for left in reversed(range(self.plan.accumulation)):
            no_sync = self.accelerator.no_sync(self.wrapped) if left else contextlib.nullcontext()
            with no_sync:
                loss, columns_P = self._loss(next(batches))
                self.accelerator.backward(loss / self.plan.accumulation)
            parts.append(columns_P)
        norm = self.accelerator.clip_grad_norm_(self.wrapped.parameters(), MAX_GRAD_NORM)
        values = self._checked(parts, norm)
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()
        return values

    def _loss(self, batch: TrainingBatch) -> tuple[Tensor, Tensor]:
        """Return the weighted loss of a micro-batch, and its parts for the log, shape (P,)."""
        batch, settings = to_device(batch, self.accelerator.device), self.settings
        gamma = 1.0 if settings.head == "bins" else settings.gamma  # there is no other term
        terms = losses(
            self.wrapped,
            batch,
            self.readout,
            read_at=settings.read_at,
            with_sft=gamma > 0,
            cnf_in_sft=settings.variant == "sft",
        )
        loss_B = terms.calibration + gamma * terms.sft
        shown = (loss_B, terms.calibration, terms.sft, terms.log_c.exp(), terms.log_c)
        columns_PB = torch.stack([*shown, batch["target"]]).detach()
        return (loss_B * batch["weight"]).sum(), columns_PB @ batch["weight"]

    def _checked(self, parts: Sequence[Tensor], norm: Any) -> dict[str, float]:
        """Return a step's values for the log, as means over the processes; refuse infinite ones."""
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm  # of sharded weights
        mean_P: Any = self.accelerator.reduce(torch.stack(list(parts)).mean(dim=0), "mean")
        numbers = torch.cat([mean_P, torch.as_tensor(norm, device=mean_P.device).reshape(1)])
        values = dict(zip((*PARTS, "grad_norm"), numbers.tolist(), strict=True))
        for name in ("loss", "grad_norm"):
            if not math.isfinite(values[name]):
                raise TrainingError(
                    f"{name} is {values[name]} at step {self.step + 1} of {len(self.plan.steps)}; "
                    "the last good checkpoint is kept: lower paper.learning_rate, or use float32"
                )
        return {**values, "learning_rate": self.optimizer.param_groups[0]["lr"]}

    def _validate(self) -> dict[str, float]:
        """Return how well calibrated c is on the validation responses (empty without any)."""
        if not self.validation:
            return {}
        log_c_N = log_confidences(
            self.model,
            self.validation,
            self.readout,
            self.pad_id,
            read_at=self.settings.read_at,
            batch_size=self.settings.micro_batch_size or self.settings.batch_size,
        )
        return calibration_of(log_c_N, self.validation)

    def _note(self, values: dict[str, float]) -> None:
        row = {**values, "epoch": self.plan.epoch(self.step)}
        self.log.append({"step": self.step, **dict(sorted(row.items()))})
        self.accelerator.log(row, self.step)

    def _save(self) -> None:
        weights, main = self.whole_weights(), self.accelerator.is_main_process
        folder = checkpoints.staging(self.root, self.step)
        if main:
            save_weights(self.model, folder, state=weights)
            progress = {"global_step": self.step, "log_history": self.log}
            (folder / "trainer_state.json").write_text(json.dumps(progress, indent=2))
        checkpoints.save_state(self.accelerator, self.wrapped, self.optimizer, folder)
        self.accelerator.wait_for_everyone()
        if main:
            checkpoints.commit(self.root, self.step)
        self.accelerator.wait_for_everyone()

    def _resume(self) -> Iterator[TrainingBatch]:
        """Load the newest checkpoint, if any, and return the micro-batches that are left."""
        folder = checkpoints.newest(self.root)
        if folder is not None:
            load_weights(self.model, folder)
            progress = json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))
            self.step, self.log = progress["global_step"], progress["log_history"]
        mine: Any = self.plan.indices(self.step, self.accelerator.process_index)
        collated: Any = partial(collate, readout=self.readout, pad_id=self.pad_id)
        batches = iter(DataLoader(self.plan, None, sampler=mine, collate_fn=collated))  # type: ignore[arg-type]
        if folder is not None:
            checkpoints.load_state(self.accelerator, self.wrapped, self.optimizer, folder)
            self.schedule.last_epoch = self.step
        return batches


def _groups(model: Any, settings: PaperSettings) -> list[dict[str, Any]]:
    """Return the parameters of LoRA, and those of the `<CNF>` rows, which get no weight decay."""
    named = [item for item in model.named_parameters() if item[1].requires_grad]
    lora = [parameter for name, parameter in named if not is_row(name)]
    rows = [parameter for name, parameter in named if is_row(name)]
    rate = settings.learning_rate
    row_rate = settings.row_learning_rate or rate
    return [
        {"params": lora, "lr": rate, "weight_decay": settings.weight_decay},
        {"params": rows, "lr": row_rate, "weight_decay": 0.0},
    ]
