from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from tiny_adapters import BATCH, adapted

import tiny_models
from grace.errors import ConfigError
from grace.methods.paper.examples import Example, collate
from grace.methods.paper.lora import (
    is_row,
    light_rows,
    set_activation_checkpointing,
    target_modules,
)
from grace.methods.paper.loss import losses

EXPECTED = {
    "llama_untied": {
        "mlp": ["down_proj", "gate_proj", "up_proj"],
        "attention": ["k_proj", "o_proj", "q_proj", "v_proj"],
        "qv": ["q_proj", "v_proj"],
    },
    "phi3": {
        "mlp": ["down_proj", "gate_up_proj"],
        "attention": ["o_proj", "qkv_proj"],
        "qv": ["qkv_proj"],
    },
    "gpt_neox": {
        "mlp": ["dense_4h_to_h", "dense_h_to_4h"],
        "attention": ["dense", "query_key_value"],
        "qv": ["query_key_value"],
    },
}
EXPECTED |= {name: EXPECTED["llama_untied"] for name in ("llama_tied", "qwen2", "gemma2")}


@pytest.mark.parametrize("name", tiny_models.ARCHITECTURES)
def test_aliases_find_the_layers_of_every_architecture(name: str) -> None:
    model = tiny_models.model(name)
    for alias, modules in EXPECTED[name].items():
        assert target_modules(model, (alias,)) == modules
    both = sorted(EXPECTED[name]["mlp"] + EXPECTED[name]["attention"])
    assert target_modules(model, ("all-linear",)) == both
    assert target_modules(model, ("mlp", "attention")) == both


def test_names_are_taken_as_they_are_and_unknown_ones_refused() -> None:
    model = tiny_models.model("llama_tied")
    assert target_modules(model, ("mlp.up_proj", "qv")) == ["q_proj", "up_proj", "v_proj"]
    with pytest.raises(ConfigError, match=r"'fc9' matches no linear layer .* down_proj, gate_proj"):
        target_modules(model, ("fc9",))


def test_experts_and_routers_leave_lora_to_the_attention() -> None:
    sizes = {**tiny_models.SIZES, "vocab_size": 320, "num_local_experts": 2}
    experts = transformers.AutoModelForCausalLM.from_config(transformers.MixtralConfig(**sizes))
    attention = ["k_proj", "o_proj", "q_proj", "v_proj"]
    assert target_modules(experts, ("mlp",)) == attention
    routed = transformers.AutoModelForCausalLM.from_config(transformers.PhimoeConfig(**sizes))
    assert target_modules(routed, ("mlp",)) == attention


@pytest.mark.parametrize(
    ("family", "options", "layers"),
    [
        ("granitemoehybrid", {"mamba_n_heads": 8}, ["input_linear", "output_linear"]),
        ("granitemoe", {}, ["k_proj", "o_proj", "q_proj", "v_proj"]),
        ("qwen2_moe", {}, ["down_proj", "gate_proj", "up_proj"]),
    ],
)
def test_shared_experts_are_mlps_and_what_routes_to_them_is_not(
    family: str, options: dict[str, Any], layers: list[str]
) -> None:
    experts = {"num_local_experts": 2, "num_experts_per_tok": 1, "num_experts": 2}
    sizes = {**tiny_models.SIZES, **tiny_models.GROUPED, "vocab_size": 320, **experts, **options}
    config = transformers.AutoConfig.for_model(family, **sizes)
    model = transformers.AutoModelForCausalLM.from_config(config)
    assert target_modules(model, ("mlp",)) == layers
    chosen = target_modules(model, ("all-linear",))
    assert not [name for name in chosen if "router" in name or "shared_expert_gate" in name]


def test_equal_leaf_names_in_attention_and_mlp_are_told_apart() -> None:
    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attn = torch.nn.ModuleDict({"c_proj": torch.nn.Linear(2, 2)})
            self.mlp = torch.nn.ModuleDict({"c_proj": torch.nn.Linear(2, 2)})

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.h = torch.nn.ModuleList([Block(), Block()])

        def get_output_embeddings(self) -> None:
            return None

    assert target_modules(Model(), ("mlp",)) == ["mlp.c_proj"]


@pytest.mark.parametrize(
    ("name", "head", "read_at"),
    [
        *((name, "token", "predict") for name in tiny_models.ARCHITECTURES),
        *(
            (name, head, read_at)
            for name in ("llama_untied", "gemma2")
            for head, read_at in (("token", "feed"), ("token", "prompt"), ("bins", "predict"))
        ),
    ],
)
def test_the_light_forward_and_its_gradients_equal_pefts_own(
    name: str, head: str, read_at: Any
) -> None:
    peft_model, cnf = adapted(name, head)
    batch = collate(BATCH, cnf, 0)

    def run() -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        peft_model.zero_grad()
        terms = losses(peft_model, batch, cnf, read_at=read_at)
        (terms.calibration.sum() + terms.sft.sum()).backward()
        named = peft_model.named_parameters()
        read = torch.stack([terms.log_c, terms.sft]).detach()
        return read, {k: p.grad.clone() for k, p in named if p.requires_grad}

    slow_c, slow = run()
    with light_rows(peft_model, read_at):
        fast_c, fast = run()
    torch.testing.assert_close(fast_c, slow_c, atol=1e-5, rtol=1e-5)
    for key in slow.keys() - fast.keys():
        assert read_at != "feed"
        assert "embed" in key
        assert not slow[key].any()
    for key in fast:
        torch.testing.assert_close(fast[key], slow[key], atol=1e-5, rtol=1e-4)
    again_c, _ = run()
    torch.testing.assert_close(again_c, slow_c, atol=0, rtol=0)


def test_the_rows_and_lora_are_float32_on_a_bfloat16_base() -> None:
    peft_model, _ = adapted("llama_untied", dtype=torch.bfloat16)
    trained = {k: p for k, p in peft_model.named_parameters() if p.requires_grad}
    assert {p.dtype for p in trained.values()} == {torch.float32}
    assert sum(is_row(key) for key in trained) == 2


@pytest.mark.parametrize("name", tiny_models.ARCHITECTURES)
def test_kept_logits_give_the_losses_of_the_full_logits(name: str) -> None:
    peft_model, cnf = adapted(name)
    batch = collate(BATCH, cnf, 0)
    with torch.no_grad():
        kept = losses(peft_model, batch, cnf)
        full = peft_model(
            batch["input_ids"],
            attention_mask=batch["attention_mask"],
            position_ids=batch["position_ids"],
        ).logits.log_softmax(-1)
    torch.testing.assert_close(kept.log_c, full[:, -2, cnf.cnf], atol=1e-5, rtol=1e-5)
    nll = -torch.stack([(full[0, 2, 12] + full[0, 3, 13]) / 2, full[1, 3, 15]])
    torch.testing.assert_close(kept.sft, nll, atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        fed = losses(peft_model, batch, cnf, read_at="feed")
    torch.testing.assert_close(fed.log_c, full[:, -1, cnf.cnf], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(fed.sft, kept.sft, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("read_at", ["predict", "feed"])
@pytest.mark.parametrize("name", tiny_models.ARCHITECTURES)
def test_padding_and_company_do_not_change_the_loss(name: str, read_at: Any) -> None:
    peft_model, cnf = adapted(name)
    longer = Example("c", tuple(range(20, 45)), (5, 6, 7, 8), 0.1)
    with torch.no_grad():
        alone = losses(peft_model, collate(BATCH[1:], cnf, 0), cnf, read_at=read_at)
        together = losses(peft_model, collate([*BATCH, longer], cnf, 0), cnf, read_at=read_at)
    for one, many in zip(alone, together, strict=True):
        torch.testing.assert_close(one[0], many[1], atol=1e-5, rtol=1e-5)


def test_an_empty_response_reads_c_at_the_last_prompt_token_and_has_no_sft_loss() -> None:
    peft_model, cnf = adapted("llama_tied")
    with torch.no_grad():
        empty = losses(peft_model, collate([Example("a", (9, 10), (), 0.5)], cnf, 0), cnf)
        logits = peft_model(torch.tensor([[9, 10]])).logits[:, -1]
    torch.testing.assert_close(empty.log_c, logits.log_softmax(-1)[:, cnf.cnf])
    assert empty.sft.item() == 0


def test_gradient_checkpointing_gives_the_same_gradients() -> None:
    grads = []
    for checkpointed in (False, True):
        peft_model, cnf = adapted("llama_untied", dropout=0.0)
        if checkpointed:
            set_activation_checkpointing(peft_model.get_base_model(), True)
        peft_model.train()
        losses(peft_model, collate(BATCH, cnf, 0), cnf).calibration.sum().backward()
        grads.append({k: p.grad for k, p in peft_model.named_parameters() if p.requires_grad})
    for key, grad in grads[0].items():
        torch.testing.assert_close(grads[1][key], grad)
