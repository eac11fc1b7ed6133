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

PROMPTS, AT_ONCE = 128, 16


@torch.no_grad()
def start_even(peft_model: Any, readout: Readout, examples: Sequence[Example], pad_id: int) -> None:
    """Start the output row of `<CNF>` such that it is about as likely as all other tokens at once.

    The row points to the mean hidden state at the ends of some prompts. Its length is measured
    through the whole model, so that a model may scale its logits.
    """
    head = peft_model.get_base_model().get_output_embeddings()
    (row_1D,) = head.token_adapter.trainable_tokens_delta.values()
    prompts = [dataclasses.replace(item, response_ids=()) for item in examples[:PROMPTS]]
    parts = [prompts[at : at + AT_ONCE] for at in range(0, len(prompts), AT_ONCE)]
    batches = [collate(part, readout, pad_id) for part in parts]
    seen: list[Tensor] = []
    hook = head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0][:, -1].float()))
    _last_logits(peft_model, batches)
    hook.remove()
    state_D = torch.cat(seen).mean(dim=0)
    row_1D.copy_(state_D / state_D.norm())
    logits_BV = _last_logits(peft_model, batches)
    rest_B = without(logits_BV, readout).logsumexp(dim=-1)
    row_1D.mul_(rest_B.mean() / logits_BV[:, readout.ids[0]].mean())


def _last_logits(peft_model: Any, batches: Sequence[Any]) -> Tensor:
    peft_model.eval()
    device = next(peft_model.parameters()).device
    found = []
    for batch in batches:
        length = batch["input_ids"].shape[1] - 1  # without <CNF>
        moved: Any = {name: value.to(device) for name, value in batch.items()}
        found.append(forward_logits(peft_model, moved, length, 1)[:, -1].float())
    return torch.cat(found)
