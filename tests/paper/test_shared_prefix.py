"""The examples before every question are read once per batch, and training is the same."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

import tiny_models
from grace.cnf import add_cnf
from grace.config import PaperSettings
from grace.engines.local import forward
from grace.methods.paper.examples import collate
from grace.methods.paper.lora import add_lora, light_rows, set_activation_checkpointing
from grace.methods.paper.loss import losses

LEAD = tuple(range(20, 60))


def prepared(name: str, head: str, examples: list[Any]) -> Any:
    """Return a model with LoRA that is not zero, what is read, and a ragged few-shot batch."""
    torch.manual_seed(0)
    model, tokenizer = tiny_models.model(name), tiny_models.tokenizer()
    cnf = add_cnf(model, tokenizer, head=head)
    settings = PaperSettings(dropout=0.0, target_modules=("all-linear",))
    peft_model = add_lora(model, cnf, settings)
    for parameter_name, parameter in peft_model.named_parameters():
        if "lora_B" in parameter_name:
            torch.nn.init.normal_(parameter, std=0.05)
    rows = [dataclasses.replace(row, prompt_ids=LEAD + row.prompt_ids) for row in examples[:5]]
    return peft_model.train(), cnf.readout, collate(rows, cnf.readout, 0)


def step(peft_model: Any, readout: Any, batch: Any, read_at: str) -> tuple[Any, dict[str, Any]]:
    """Return the loss of each example and the gradients."""
    peft_model.zero_grad()
    with light_rows(peft_model, read_at):
        terms = losses(peft_model, batch, readout, read_at=read_at)  # type: ignore[arg-type]
        loss_B = terms.calibration + 0.1 * terms.sft
        loss_B.sum().backward()
    named = peft_model.named_parameters()
    return loss_B.detach(), {name: p.grad.clone() for name, p in named if p.grad is not None}


def columns_read(peft_model: Any) -> list[int]:
    read: list[int] = []
    layer = peft_model.get_base_model().model.layers[0].mlp
    layer.register_forward_hook(lambda _, inputs, out: read.append(inputs[0].shape[:-1].numel()))
    return read


@pytest.mark.parametrize("name", ["llama_untied", "gemma3"])
@pytest.mark.parametrize(
    ("head", "read_at"),
    [("bins", "predict"), ("token", "predict"), ("token", "feed"), ("token", "prompt")],
)
def test_loss_and_gradients_are_those_of_prompts_read_whole(
    name: str, head: str, read_at: str, examples: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = prepared(name, head, examples)
    read = columns_read(given[0])
    fast, fast_gradients = step(*given, read_at)
    assert read[0] == len(LEAD)
    width = given[2]["input_ids"].shape[1] - (read_at != "feed")
    assert sum(read) == len(LEAD) + 5 * (width - len(LEAD))
    monkeypatch.setattr(forward, "SHORTEST", 10**9)
    slow, slow_gradients = step(*given, read_at)
    torch.testing.assert_close(fast, slow, rtol=0, atol=1e-5)
    assert fast_gradients.keys() == slow_gradients.keys()
    for parameter, gradient in slow_gradients.items():
        close = {"rtol": 1e-4, "atol": 1e-5}
        torch.testing.assert_close(fast_gradients[parameter], gradient, **close)
    assert max(float(gradient.abs().max()) for gradient in slow_gradients.values()) > 1e-2


def test_prompts_are_read_whole_where_activations_are_computed_again(
    examples: list[Any],
) -> None:
    peft_model, readout, batch = prepared("llama_untied", "token", examples)
    set_activation_checkpointing(peft_model.get_base_model(), True)
    read = columns_read(peft_model)
    step(peft_model, readout, batch, "predict")
    assert set(read) == {5 * (batch["input_ids"].shape[1] - 1)}
