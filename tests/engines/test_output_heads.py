"""What a row of an output head adds to a logit, and the head alone, in all kinds of models."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

import tiny_models
from grace.cnf import add_cnf, count_rows, without
from grace.config import PaperSettings
from grace.engines import Known
from grace.engines import transformers as engine_module
from grace.engines.local.forward import Forward, Unread, head_shape
from grace.engines.local.loading import head_in_float32
from grace.engines.transformers import TransformersEngine
from grace.errors import ModelError
from grace.methods.paper.lora import add_lora

SCALES: dict[str, tuple[dict[str, Any], float]] = {
    "llama": ({}, 1.0),
    "gemma2": ({"head_dim": 8, "final_logit_softcapping": 20.0}, 1.0),
    "granite": ({"logits_scaling": 6.0}, 1 / 6),
    "cohere": ({"logit_scale": 0.3}, 0.3),
    "hyperclovax": ({"logits_scaling": 4.0}, 4.0),
    "minicpm3": ({
            "dim_model_base": 8, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4,
            "qk_nope_head_dim": 8, "v_head_dim": 8, "num_key_value_heads": 4, "head_dim": 4,
        }, 0.25),
    "falcon_h1": (
        {
            "lm_head_multiplier": 0.0390625, "head_dim": 8, "mamba_n_heads": 8, "mamba_d_head": 8,
            "mamba_d_state": 8, "mamba_d_ssm": 64, "mamba_chunk_size": 8,
        },
        0.0390625,
    ),
}  # fmt: skip
NAMED = ("llama", "gemma2", "granite", "cohere", "minicpm3")  # whose number is taken as it is
IDS = torch.tensor([[5, 9, 30, 200]])


def made(family: str, **options: Any) -> Any:
    if family not in transformers.CONFIG_MAPPING:
        pytest.skip("this version of transformers does not know the family")
    sizes = {**tiny_models.SIZES, **tiny_models.GROUPED, "vocab_size": 320, "pad_token_id": 0}
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **{**sizes, **options})
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("family", SCALES)
@torch.inference_mode()
def test_a_logit_is_the_product_of_row_and_state_times_the_scale(family: str, half: bool) -> None:
    options, scale = SCALES[family]
    model = made(family, tie_word_embeddings=False, **options)
    if half:
        model = model.to(torch.bfloat16)
        head_in_float32(model)
    shape = head_shape(model, 300)
    assert shape.scale == (scale if family in NAMED else pytest.approx(scale, rel=1e-6))
    forward, unread = Forward(model), Unread(IDS, None, torch.arange(4)[None])
    logits, _ = forward(unread, keep=4)
    products = forward.states(unread).float() @ model.lm_head.weight.float().T
    wanted = shape.scale * products
    if shape.capped:
        wanted = 20 * (wanted / 20).tanh()
    torch.testing.assert_close(logits, wanted, atol=0.1 if half else 1e-4, rtol=0.02)
    assert shape.capped == (family == "gemma2")
    assert shape.mean_D == pytest.approx(model.lm_head.weight[:300].float().mean(0).numpy())


def test_a_head_that_does_not_read_the_last_states_is_refused() -> None:
    model = made("modernbert-decoder", local_attention=16)
    with pytest.raises(ModelError, match="something other than the last hidden states"):
        head_shape(model, 300)


HEADS = {**{name: options for name, (options, _) in SCALES.items()}, "phi": {}, "opt": {}}
BY_READOUT = [("linear", "predict"), ("token", "predict"), ("token", "feed"), ("bins", "prompt")]


def engine_of(model: Any, head: Any, read_at: str) -> TransformersEngine:
    """Return an engine of a model with random rows for what is read, and a bias where it can be."""
    tokenizer = tiny_models.tokenizer()
    bias = getattr(model.get_output_embeddings(), "bias", None)
    if bias is not None:
        torch.nn.init.normal_(bias)
    cnf = add_cnf(model, tokenizer, head=head)
    torch.nn.init.normal_(model.get_output_embeddings().weight.data[list(cnf.readout.ids)])
    return TransformersEngine(model, tokenizer, read_at)


def check(engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch, at_once: int = 5) -> None:
    """Compare a batch with one pass per answer that reads all logits of the whole model.

    Where the head is called alone, it sees each position once, and at most `at_once` of them.
    """
    prompts = tiny_models.prompts(engine.tokenizer, 6)
    answers = [tuple(range(20 + n, 20 + 3 * n)) for n in range(6)]  # of 0 to 10 tokens
    wanted = []
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = torch.tensor([[*prompt, *answer, *engine.reader.fed]])
        with torch.inference_mode():
            logits_KV = engine.model(input_ids=ids).logits[0, len(prompt) - 1 :].float()
        totals_K = logits_KV.logsumexp(-1)
        readings = engine.readout.readings(logits_KV[:, list(engine.readout.ids)], totals_K)
        if engine.reader.banned:
            logits_KV = without(logits_KV, engine.readout)
        lines_KV, count = logits_KV.log_softmax(-1), len(answer)
        end = lines_KV[count, list(engine.reader.stops)].logsumexp(-1)
        wanted.append((lines_KV[range(count), answer].tolist(), float(end), readings.sigmoid()))
    seen = []
    monkeypatch.setitem(engine_module.LOGITS_AT_ONCE, "cpu", at_once * count_rows(engine.model))
    apart = engine.forward.apart
    with engine.model.get_output_embeddings().register_forward_hook(
        lambda _, given, __: seen.append(given[0][..., 0].numel())
    ):
        scored = [*engine._scored(prompts, answers)]
    if apart:
        extra = 1 + len(engine.reader.fed)
        assert sum(seen) == sum(len(answer) + extra for answer in answers)
        assert max(seen) == at_once
    for got, (logprobs, end, c_KQ) in zip(scored, wanted, strict=True):
        assert [*got.logprobs, got.end_logprob] == pytest.approx(
            [*logprobs, end], abs=1e-5, rel=1e-5
        )
        ours_KQ = torch.tensor(got.readings).sigmoid()
        torch.testing.assert_close(ours_KQ, c_KQ, atol=1e-5, rtol=0)
    check_known(engine, prompts, answers, wanted)


def check_known(engine: TransformersEngine, prompts: Any, answers: Any, wanted: Any) -> None:
    """Compare again, with log-probabilities that are known: a linear read-out takes few rows."""
    few = engine.readout.head == "linear" and engine.forward.reads_few
    plain = isinstance(engine.model.get_output_embeddings(), torch.nn.Linear)  # not an adapter's
    assert few == (engine.readout.head == "linear" and engine.forward.apart and plain)
    known = [Known(logprobs, end) for logprobs, end, _ in wanted]
    widths = set()
    with engine.model.get_output_embeddings().register_forward_hook(
        lambda _, __, output: widths.add(output.shape[-1])
    ):
        scored = [*engine._scored(prompts, answers, known)]
    assert widths == {len(engine.readout.ids) if few else count_rows(engine.model)}
    for got, (logprobs, end, c_KQ) in zip(scored, wanted, strict=True):
        assert got.logprobs == pytest.approx(logprobs, abs=1e-5, rel=1e-5)
        assert got.end_logprob == pytest.approx(end, abs=1e-5, rel=1e-5)
        ours_KQ = torch.tensor(got.readings).sigmoid()
        torch.testing.assert_close(ours_KQ, c_KQ, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", HEADS)
def test_logits_of_a_few_positions_are_those_of_the_whole_model(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(
        made(family, tie_word_embeddings=False, **HEADS[family]), "linear", "predict"
    )
    assert engine.forward.apart == (family != "opt")  # which calls a part of its decoder
    check(engine, monkeypatch)


@pytest.mark.parametrize(("head", "read_at"), BY_READOUT)
@pytest.mark.parametrize("name", ["gemma2", "qwen2", "llama_tied"])
def test_every_read_out_reads_a_few_positions_at_a_time(
    name: str, head: str, read_at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(engine_of(tiny_models.model(name), head, read_at), monkeypatch)


@pytest.mark.parametrize("name", ["llama_tied", "llama_untied"])
def test_an_adapter_on_the_head_is_called_with_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizer = tiny_models.model(name), tiny_models.tokenizer()
    peft_model = add_lora(model, add_cnf(model, tokenizer, head="linear"), PaperSettings())
    for parameter in peft_model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.2)
    engine = TransformersEngine(peft_model, tokenizer)
    assert engine.forward.apart
    check(engine, monkeypatch)
    with peft_model.disable_adapter():
        check(engine, monkeypatch)
