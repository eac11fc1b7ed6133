"""Where the row of `<CNF>` starts when c is read at the prompt.

There neither EOS nor the mean of the vocabulary is likely: c would start below one in a million,
where (t - c)^2 has no slope, and stay there.

Shapes: B prompts, D hidden size, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from grace.cnf import Readout, without
from grace.training.examples import Example, collate
from grace.training.forward import forward_logits

PROMPTS, AT_ONCE = 1024, 16
RIDGE = 0.1
"""Ridge penalty, as a share of the mean squared length of the states."""


@torch.no_grad()
def start_even(peft_model: Any, readout: Readout, examples: Sequence[Example], pad_id: int) -> None:
    """Start the output row of `<CNF>` such that it is about as likely as all other tokens at once.

    The row is a ridge regression of what its logit would have to be, on the hidden states at the
    ends of some prompts: c starts near 1/2 at each of them, not only on average. Its length is
    measured through the whole model, so that a model may scale its logits.
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


def _ridge(states_BD: Tensor, wanted_B: Tensor) -> Tensor:
    """Return the direction whose products with the states come close to the wanted logits."""
    gram_BB = states_BD @ states_BD.T
    gram_BB.diagonal().add_(RIDGE * gram_BB.diagonal().mean())
    row_D: Tensor = states_BD.T @ torch.linalg.solve(gram_BB, wanted_B)
    return row_D


def _last_logits(peft_model: Any, batches: Sequence[Any]) -> Tensor:
    peft_model.eval()
    device = next(peft_model.parameters()).device
    found = []
    for batch in batches:
        length = batch["input_ids"].shape[1] - 1  # without <CNF>
        moved: Any = {name: value.to(device) for name, value in batch.items()}
        found.append(forward_logits(peft_model, moved, length, 1)[:, -1].float())
    return torch.cat(found)
