"""Training examples and the batches made of them: prompt, response, `<CNF>`, left-padded.

Shapes: B examples, T tokens of the longest sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
import torch
from torch import Tensor

from grace.cnf import Readout
from grace.metrics.samples import bin_index

IGNORED = -100


@dataclass(frozen=True, slots=True)
class Example:
    """One response to learn from; `weight` says how much it counts beside the others."""

    id: str
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    target: float
    weight: float = 1.0

    def __len__(self) -> int:
        """Return the number of tokens with `<CNF>`."""
        return len(self.prompt_ids) + len(self.response_ids) + 1


class Batch(TypedDict):
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


def collate(examples: Sequence[Example], readout: Readout, pad_id: int) -> Batch:
    """Pad examples on the left to one batch, each with the token that its target asks for."""
    target_B = np.array([example.target for example in examples])
    interval_B = bin_index(target_B, len(readout.ids))
    width = max(len(example) for example in examples)
    input_ids = torch.full((len(examples), width), pad_id, dtype=torch.long)
    mask = torch.zeros((len(examples), width), dtype=torch.long)
    labels = torch.full((len(examples), width), IGNORED, dtype=torch.long)
    for row, example in enumerate(examples):
        asked = readout.ids[interval_B[row]]
        tokens = torch.tensor((*example.prompt_ids, *example.response_ids, asked))
        input_ids[row, width - len(tokens) :] = tokens
        mask[row, width - len(tokens) :] = 1
        start = width - 1 - len(example.response_ids)
        labels[row, start : width - 1] = input_ids[row, start : width - 1]
    return Batch(
        input_ids=input_ids,
        attention_mask=mask,
        position_ids=(mask.cumsum(dim=1) - 1).clamp(min=0),
        labels=labels,
        target=torch.tensor([example.target for example in examples], dtype=torch.float32),
        weight=torch.tensor([example.weight for example in examples], dtype=torch.float32),
    )
