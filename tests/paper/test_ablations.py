"""GrACE-SFT, GrACE-Pre and GrACE-Disc: their losses by hand, and from training to `grace.load`."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tiny_adapters import BATCH, adapted

import grace
import tiny_models
import tiny_run
from grace.cnf import TOKENS, add_cnf
from grace.engines import Sampling
from grace.methods.paper.examples import Example, collate
from grace.methods.paper.lora import light_rows
from grace.methods.paper.loss import log_confidences, losses
from grace.records import is_whole

EMPTY = Example("c", (16, 17), (), 0.5)
SIGNS = ["llama_tied", "llama_untied", "qwen2", "gemma2"]


def logits_after(peft_model: Any, ids: tuple[int, ...]) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = peft_model(torch.tensor([ids])).logits[0, -1]
    return logits


def nll(logits: torch.Tensor, token: int) -> float:
    return -float(logits.log_softmax(-1)[token])


def steps(peft_model: Any, example: Example) -> list[torch.Tensor]:
    """The logits before each response token and before the end, one forward each."""
    ids = (*example.prompt_ids, *example.response_ids)
    start = len(example.prompt_ids)
    return [logits_after(peft_model, ids[:end]) for end in range(start, len(ids) + 1)]


@pytest.mark.parametrize("name", SIGNS)
def test_in_grace_sft_the_token_is_one_more_label_where_c_is_read(name: str) -> None:
    peft_model, readout = adapted(name)
    rows = [*BATCH, EMPTY]
    with torch.no_grad():
        terms = losses(peft_model, collate(rows, readout, 0), readout, cnf_in_sft=True)
    for number, example in enumerate(rows):
        before = steps(peft_model, example)
        labels = (*example.response_ids, readout.ids[0])
        each = [nll(logits, token) for logits, token in zip(before, labels, strict=True)]
        assert terms.sft[number].item() == pytest.approx(np.mean(each), abs=1e-5)
        assert terms.log_c[number].item() == pytest.approx(-each[-1], abs=1e-5)
        squared = (example.target - np.exp(-each[-1])) ** 2
        assert terms.calibration[number].item() == pytest.approx(squared, abs=1e-5)


@pytest.mark.parametrize("name", SIGNS)
def test_in_grace_pre_c_comes_before_the_response_which_is_learned_without_the_token(
    name: str,
) -> None:
    peft_model, readout = adapted(name)
    rows = [*BATCH, EMPTY]
    with torch.no_grad():
        terms = losses(peft_model, collate(rows, readout, 0), readout, read_at="prompt")
    for number, example in enumerate(rows):
        before = steps(peft_model, example)
        log_c = -nll(before[0], readout.ids[0])
        for logits in before:
            logits[readout.ids[0]] = -torch.inf
        each = [nll(at, token) for at, token in zip(before, example.response_ids, strict=False)]
        expected = np.mean(each) if each else 0.0
        assert terms.sft[number].item() == pytest.approx(expected, abs=1e-5)
        assert terms.log_c[number].item() == pytest.approx(log_c, abs=1e-5)
        squared = (example.target - np.exp(log_c)) ** 2
        assert terms.calibration[number].item() == pytest.approx(squared, abs=1e-5)


@pytest.mark.parametrize("name", SIGNS)
def test_grace_disc_is_the_sft_loss_with_the_bin_token_as_last_label_and_nothing_else(
    name: str,
) -> None:
    peft_model, readout = adapted(name, "bins")
    rows = [*BATCH, EMPTY]
    with torch.no_grad():
        terms = losses(peft_model, collate(rows, readout, 0), readout)
    assert not terms.calibration.any()
    for number, (example, interval) in enumerate(zip(rows, (3, 9, 5), strict=True)):
        before = steps(peft_model, example)
        labels = (*example.response_ids, readout.ids[interval])
        each = [nll(logits, token) for logits, token in zip(before, labels, strict=True)]
        assert terms.sft[number].item() == pytest.approx(np.mean(each), abs=1e-5)
        likeliest = int(before[-1][list(readout.ids)].argmax())
        assert terms.log_c[number].exp().item() == pytest.approx(0.05 + likeliest / 10)


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        *((name, "grace") for name in ("llama_tied", "phi3", "gpt_neox")),
        *(("llama_untied", variant) for variant in ("sft", "pre", "disc", "feed")),
        ("qwen2", "sft"),
        ("gemma2", "feed"),
    ],
)
def test_training_scoring_and_generating_read_the_same_c_of_a_saved_adapter(
    name: str, variant: str, train: Any, validation: list[Example], tmp_path: Path
) -> None:
    seen: list[dict[str, float]] = []
    options = {"learning_rate": 2e-2, "variant": variant}
    done = train(name, epochs=2, on_step=lambda *a: seen.append(a[2]), **options)
    base = tiny_run.write_model(tmp_path / "base", name)
    model = grace.load(base, adapter=done.adapter)
    engine = model.engine
    assert engine.readout == done.cnf.readout
    assert engine.read_at == {"pre": "prompt", "feed": "feed"}.get(variant, "predict")
    c = engine.confidences(
        [row.prompt_ids for row in validation], [row.response_ids for row in validation]
    )
    assert np.mean(c) == pytest.approx(seen[-1]["eval_mean_c"], abs=1e-5)
    options = {"read_at": engine.read_at}
    again = log_confidences(engine.model, validation, engine.readout, 0, **options)  # type: ignore[arg-type]
    np.testing.assert_allclose(c, np.exp(again), atol=1e-5)
    prompts = tiny_models.prompts(engine.tokenizer, 8)
    for sampling in (Sampling(max_new_tokens=20), Sampling(4, 1.0, max_new_tokens=20)):
        for number, generations in engine.generate(prompts, sampling):
            ended = [got for got in generations if is_whole(got)]
            responses = [got.token_ids for got in ended]
            scored = engine.confidences([prompts[number]] * len(ended), responses)
            assert scored == pytest.approx([got.confidence for got in ended], abs=1e-5)
    reply = model.ask("Who?", max_new_tokens=20)
    assert reply.confidence is None or 0 <= reply.confidence <= 1


def test_grace_pre_starts_where_it_can_learn_and_learns(train: Any) -> None:
    data = [Example(str(i), (9, 10 + i), (12, 13), i % 2 * 0.8 + 0.1) for i in range(8)]
    seen: list[dict[str, float]] = []
    done = train(
        "gemma2",
        variant="pre",
        epochs=20,
        learning_rate=2e-2,
        dropout=0.0,
        data=data,
        held_out=[dataclasses.replace(item, target=float(item.target > 0.5)) for item in data],
        on_step=lambda *a: seen.append(a[2]),
    )
    assert 0.1 < done.log[0]["eval_mean_c"] < 0.9
    assert seen[-1]["calibration"] < 0.5 * seen[0]["calibration"]
    assert done.log[-1]["eval_auroc"] > 0.8


def test_a_half_precision_model_reads_the_prompt_in_float32_while_training() -> None:
    peft_model, readout = adapted("llama_untied", dtype=torch.bfloat16)
    batch = collate(BATCH, readout, 0)
    with torch.no_grad(), light_rows(peft_model, "prompt"):
        read = losses(peft_model, batch, readout, read_at="prompt").log_c
        alone = [dataclasses.replace(example, response_ids=()) for example in BATCH]
        cut = losses(peft_model, collate(alone, readout, 0), readout, with_sft=False).log_c
    with torch.no_grad(), light_rows(peft_model, "predict"):
        exact = losses(peft_model, collate(alone, readout, 0), readout, with_sft=False).log_c
    torch.testing.assert_close(cut, exact, atol=1e-5, rtol=0)
    torch.testing.assert_close(read, exact, atol=2e-2, rtol=0)  # the states are bfloat16
    assert (read.bfloat16().float() != read).any()


@pytest.mark.parametrize("name", ["llama_untied", "gemma2"])
def test_grace_disc_changes_exactly_lora_and_ten_rows(name: str, train: Any) -> None:
    from peft import PeftModel

    before, tokenizer = tiny_models.model(name), tiny_models.tokenizer()
    ids = sorted(add_cnf(before, tokenizer, head="bins").readout.ids)
    done = train(name, variant="disc")
    fresh = tiny_models.model(name)
    add_cnf(fresh, tiny_models.tokenizer(), head="bins")
    with pytest.warns(FutureWarning, match="is_gradient_checkpointing"):
        after = PeftModel.from_pretrained(fresh, done.adapter).merge_and_unload()
    head = before.get_output_embeddings().weight
    embedding = before.get_input_embeddings().weight
    named = dict(after.named_parameters())
    for key, old in before.named_parameters():
        changed = (old != named[key]).reshape(len(old), -1).any(dim=1).nonzero().flatten()
        if old is head:
            assert changed.tolist() == ids
        elif old is embedding:
            assert changed.tolist() == []  # no input holds a bin token
        else:
            assert bool(len(changed)) == ("mlp" in key and key.endswith("weight")), key


class Killed(BaseException):
    """Not an Exception, so nothing on the way may swallow it."""


def test_a_killed_training_of_an_ablation_ends_with_the_same_bytes(train: Any) -> None:
    def stop(done: int, total: int, logs: Any) -> None:
        if done == 5:
            raise Killed

    options = {"variant": "disc", "save_every": 2}
    whole = train(folder="whole", **options).adapter
    with pytest.raises(Killed):
        train(folder="cut", on_step=stop, **options)
    cut = train(folder="cut", **options).adapter
    assert {p.name: p.read_bytes() for p in cut.iterdir()} == {
        p.name: p.read_bytes() for p in whole.iterdir()
    }


def test_the_adapter_directory_says_what_is_read(train: Any) -> None:
    done = train(epochs=1, variant="disc")
    record = json.loads((done.adapter / "grace.json").read_text())
    assert record["bin_tokens"] == dict(zip(TOKENS["bins"], done.cnf.readout.ids, strict=True))
    assert "cnf_id" not in record
    card = (done.adapter / "README.md").read_text()
    assert "10 vocabulary rows (`<B1>` to `<B10>`)" in card
    assert load_file(done.adapter / "adapter_model.safetensors")
    pre = train(epochs=1, variant="pre", folder="pre")
    assert "the response is not looked at" in (pre.adapter / "README.md").read_text()
