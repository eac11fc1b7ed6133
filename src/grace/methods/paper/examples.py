"""Training examples, their order, and batches of them.

All optimizer steps are planned before training, from the seed, so that a resumed run needs only
its step number to go on with the same batches. A batch holds prompts, responses and `<CNF>`,
padded on the left.

Shapes: B examples, T tokens of the longest sequence.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, cast

import numpy as np
import torch
from torch import Tensor

from grace.cnf import Readout
from grace.config import PaperSettings
from grace.methods.paper.targets import balance
from grace.metrics.kernels import bin_index

IGNORED = -100  # the label of positions without a loss
SORTED_BATCHES = 8  # batches whose examples are grouped by length


@dataclass(frozen=True, slots=True)
class Example:
    """One response to train on, and its weight in the loss of its micro-batch."""

    id: str
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    target: float
    weight: float = 1.0

    def __len__(self) -> int:
        """Return the number of tokens with `<CNF>`."""
        return len(self.prompt_ids) + len(self.response_ids) + 1


class TrainingBatch(TypedDict):
    """Tensors of a batch; `<CNF>`, or the bin token of the target, is last in every row.

    `labels` hold the response tokens at their own positions and -100 elsewhere, so neither the
    prompt nor `<CNF>` nor an end token is ever a label.
    """

    input_ids: Tensor
    attention_mask: Tensor
    position_ids: Tensor
    labels: Tensor
    target: Tensor
    weight: Tensor


def collate(examples: Sequence[Example], readout: Readout, pad_id: int) -> TrainingBatch:
    """Pad examples on the left to one batch, each ending with `<CNF>` or its target's bin token."""
    target_B = np.array([example.target for example in examples])
    interval_B = bin_index(target_B, len(readout.ids))
    width = max(len(example) for example in examples)
    input_ids = torch.full((len(examples), width), pad_id, dtype=torch.long)
    mask = torch.zeros((len(examples), width), dtype=torch.long)
    labels = torch.full((len(examples), width), IGNORED, dtype=torch.long)
    for row, example in enumerate(examples):
        last = readout.ids[interval_B[row]]
        tokens = torch.tensor((*example.prompt_ids, *example.response_ids, last))
        input_ids[row, width - len(tokens) :] = tokens
        mask[row, width - len(tokens) :] = 1
        start = width - 1 - len(example.response_ids)
        labels[row, start : width - 1] = input_ids[row, start : width - 1]
    return TrainingBatch(
        input_ids=input_ids,
        attention_mask=mask,
        position_ids=(mask.cumsum(dim=1) - 1).clamp(min=0),
        labels=labels,
        target=torch.tensor([example.target for example in examples], dtype=torch.float32),
        weight=torch.tensor([example.weight for example in examples], dtype=torch.float32),
    )


def to_device(batch: Any, device: torch.device) -> TrainingBatch:
    """Return a batch on a device."""
    return cast(TrainingBatch, {name: tensor.to(device) for name, tensor in batch.items()})


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """Micro-batches in order, `accumulation` of them to an optimizer step, and where epochs end."""

    examples: Sequence[Example]
    steps: tuple[tuple[int, ...], ...]
    epoch_ends: tuple[int, ...]
    accumulation: int
    processes: int

    def __len__(self) -> int:
        """Return the number of micro-batches of all processes."""
        return len(self.steps) * self.accumulation * self.processes

    def __getitem__(self, index: int) -> list[Example]:
        """Return a micro-batch; its weights make the micro-batches of a step add up to a mean."""
        parts = self.accumulation * self.processes
        step, part = divmod(index, parts)
        rows = self.steps[step]
        mine = np.array_split(np.asarray(rows), parts)[part]
        scale = parts / len(rows)
        if not len(mine):
            return [dataclasses.replace(self.examples[rows[0]], weight=0.0)]
        chosen = [self.examples[row] for row in mine]
        return [dataclasses.replace(item, weight=scale) for item in chosen]

    def indices(self, done: int, process: int) -> range:
        """Return the micro-batches of one process after so many optimizer steps."""
        start = done * self.accumulation * self.processes + process
        return range(start, len(self), self.processes)

    def epoch(self, step: int) -> float:
        """Return how many epochs are done after `step` optimizer steps."""
        start = 0
        for number, end in enumerate(self.epoch_ends):
            if step <= end:
                return number + (step - start) / (end - start)
            start = end
        return float(len(self.epoch_ends))


def make_plan(
    examples: Sequence[Example], settings: PaperSettings, *, seed: int, processes: int = 1
) -> TrainingPlan:
    """Plan all epochs: balance, shuffle, group by length, split into optimizer steps."""
    steps: list[tuple[int, ...]] = []
    ends: list[int] = []
    for epoch in range(settings.epochs):
        steps += _epoch_steps(examples, settings, seed, epoch)
        ends.append(len(steps))
    micro = min(settings.micro_batch_size or settings.batch_size, settings.batch_size)
    accumulation = max(1, math.ceil(settings.batch_size / (micro * processes)))
    return TrainingPlan(examples, tuple(steps), tuple(ends), accumulation, processes)


def _epoch_steps(
    examples: Sequence[Example], settings: PaperSettings, seed: int, epoch: int
) -> list[tuple[int, ...]]:
    target_N = np.asarray([example.target for example in examples])
    rows_N = balance(target_N, settings.balance, seed=seed)
    rng = np.random.default_rng((seed, epoch, 1))
    order = [int(row) for row in rng.permutation(rows_N)]
    window = settings.batch_size * SORTED_BATCHES
    steps: list[tuple[int, ...]] = []
    for start in range(0, len(order), window):
        part = sorted(order[start : start + window], key=lambda row: len(examples[row]))
        steps += [
            tuple(part[at : at + settings.batch_size])
            for at in range(0, len(part), settings.batch_size)
        ]
    return [steps[index] for index in rng.permutation(len(steps))]
