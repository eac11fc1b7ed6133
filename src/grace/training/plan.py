"""The order of training: which examples go through the model together, fixed by the seed.

The whole run is one list of optimizer steps, made before training, so that a resumed run needs
nothing but its step number to go on with the same batches.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from grace.config import TrainSettings
from grace.training.examples import Example
from grace.training.targets import balance

SORTED_BATCHES = 8


@dataclass(frozen=True, slots=True)
class Plan:
    """Micro-batches in order, and the optimizer steps at which the epochs end.

    `accumulation` consecutive micro-batches per process make one optimizer step.
    """

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
        return [dataclasses.replace(item, weight=item.weight * scale) for item in chosen]


def make_plan(
    examples: Sequence[Example], settings: TrainSettings, *, seed: int, processes: int = 1
) -> Plan:
    """Plan all epochs: balance, shuffle, group by length, split into optimizer steps.

    Weights are scaled to a mean of 1, so that their scale does not change the learning rate.
    """
    mean_weight = float(np.mean([example.weight for example in examples]))
    scaled = [dataclasses.replace(item, weight=item.weight / mean_weight) for item in examples]
    steps: list[tuple[int, ...]] = []
    ends: list[int] = []
    for epoch in range(settings.epochs):
        steps += _epoch_steps(scaled, settings, seed, epoch)
        ends.append(len(steps))
    micro = min(settings.micro_batch_size or settings.batch_size, settings.batch_size)
    accumulation = max(1, math.ceil(settings.batch_size / (micro * processes)))
    return Plan(scaled, tuple(steps), tuple(ends), accumulation, processes)


def _epoch_steps(
    examples: Sequence[Example], settings: TrainSettings, seed: int, epoch: int
) -> list[tuple[int, ...]]:
    target_N = np.asarray([example.target for example in examples])
    rows_N = balance(target_N, settings.balance, seed=seed, epoch=epoch)
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
