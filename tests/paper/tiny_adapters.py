"""A tiny model with LoRA and rows that are not at their start, and two examples for it."""

from __future__ import annotations

from typing import Any

import torch

import tiny_models
from grace.cnf import add_cnf
from grace.config import PaperSettings
from grace.methods.paper.examples import Example
from grace.methods.paper.lora import add_lora

BATCH = [Example("a", (9, 10, 11), (12, 13), 0.3), Example("b", (14,), (15,), 0.95)]


def adapted(
    name: str, head: Any = "token", dtype: Any = torch.float32, **settings: Any
) -> tuple[Any, Any]:
    """Return the model and its readout."""
    model, tokenizer = tiny_models.model(name).to(dtype), tiny_models.tokenizer()
    cnf = add_cnf(model, tokenizer, head=head)
    torch.manual_seed(0)
    peft_model = add_lora(model, cnf, PaperSettings(rank=4, **settings))
    with torch.no_grad():
        for key, parameter in peft_model.named_parameters():
            if parameter.requires_grad:
                noise = torch.Generator().manual_seed(len(key))
                parameter += 0.1 * torch.randn(parameter.shape, generator=noise)
    return peft_model.eval(), cnf.readout
