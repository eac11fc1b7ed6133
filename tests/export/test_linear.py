"""A read-out of two rows without LoRA: loaded, exported and served it is the same everywhere."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import torch
from safetensors.torch import load_file
from test_forms import EVIDENCE
from test_snippets import code_of, run

import grace
import tiny_models
import tiny_run
from fake_upstream import MODEL, serving
from grace.engines import Sampling
from grace.engines.openai import OpenAIEngine
from grace.engines.transformers import TransformersEngine
from grace.errors import ConfigError, ModelError
from grace.export import export_model
from grace.pipeline.stages.fit import write_rows_adapter
from grace.records import is_whole

BOUNDED = dataclasses.replace(EVIDENCE, low=(-5.0,) * 8, high=(3.0,) * 8, limit=6.0)
WITH_FIELDS = dataclasses.replace(
    BOUNDED, fields={"": BOUNDED, "b": dataclasses.replace(BOUNDED, bias=-1.0)}
)
PROMPTS = [tiny_models.tokenizer().encode(text) for text in tiny_models.SENTENCES]
SAMPLING = Sampling(max_new_tokens=12)
pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*tie_word_embeddings.*"),
]


def fitted(name: str, folder: Path, task: str = "jsonl") -> Path:
    """Write a backbone and four random rows for it, and return the adapter."""
    base = folder / "base"
    tiny_run.write_model(base, name)
    engine = TransformersEngine.load(base)
    rows = np.random.default_rng(0).normal(size=(4, 32)).astype(np.float32)
    metadata = {"base_model": str(base), "data": {"task": task, "prompt": "short"}}
    write_rows_adapter(engine, rows, WITH_FIELDS, folder / "adapter", metadata)
    return folder / "adapter"


def answers(engine: Any) -> list[Any]:
    made = {at: one for at, (one,) in engine.generate(PROMPTS, SAMPLING)}
    return [made[at] for at in range(len(PROMPTS))]


def same(ours: Any, theirs: Any, within: float = 1e-5) -> None:
    assert [one.token_ids for one in ours] == [one.token_ids for one in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert (one.confidence is None) == (other.confidence is None)
        if one.confidence is not None:
            assert one.confidence == pytest.approx(other.confidence, abs=within)
            assert one.logprobs == pytest.approx(other.logprobs, abs=within)


@pytest.mark.parametrize("name", tiny_models.ARCHITECTURES)
def test_a_fitted_model_says_what_its_base_says(name: str, tmp_path: Path) -> None:
    adapter = fitted(name, tmp_path)
    plain = TransformersEngine.load(tmp_path / "base")
    engine = TransformersEngine.load(tmp_path / "base", adapter=adapter)
    for one, other in zip(answers(engine), answers(plain), strict=True):
        assert (one.token_ids, one.finish_reason) == (other.token_ids, other.finish_reason)
        # qwen2's base has probability on the rows to spare, which then hold the tokens read
        assert one.logprobs == pytest.approx(other.logprobs, abs=0.05 if name == "qwen2" else 1e-6)
    made = answers(engine)
    assert all((one.confidence is not None) == is_whole(one) for one in made)
    assert all(len(one.trace) == len(one.token_ids) + 1 for one in made if one.confidence)


@pytest.mark.parametrize("name", ["llama_tied", "llama_untied", "qwen2"])
def test_merged_it_is_a_plain_model_with_the_same_confidences(name: str, tmp_path: Path) -> None:
    adapter = fitted(name, tmp_path)
    out = tmp_path / "out"
    export_model(adapter, adapter, str(tmp_path / "base"), out)
    engine = TransformersEngine.load(tmp_path / "base", adapter=adapter)
    merged = grace.load(out).engine
    same(answers(merged), answers(engine))
    assert set(merged.reader.stops) == {3}  # type: ignore[attr-defined]


def test_as_a_lora_it_changes_four_logits_of_a_base_with_rows_to_spare(tmp_path: Path) -> None:
    from peft import PeftModel

    adapter = fitted("qwen2", tmp_path)
    out = tmp_path / "out"
    export_model(adapter, adapter, str(tmp_path / "base"), out, form="vllm-lora")
    base = TransformersEngine.load(tmp_path / "base").model
    engine = TransformersEngine.load(tmp_path / "base", adapter=adapter)
    with_lora = PeftModel.from_pretrained(base, out).eval()
    tensor = torch.tensor([PROMPTS[0]])
    found, wanted = with_lora(tensor).logits, engine.model(tensor).logits
    assert np.allclose(found.detach().numpy(), wanted.detach().numpy(), atol=1e-4)


def test_through_a_server_and_by_the_lines_of_the_card_it_is_the_same(tmp_path: Path) -> None:
    adapter = fitted("qwen2", tmp_path)
    out = tmp_path / "out"
    export_model(adapter, adapter, str(tmp_path / "base"), out)
    model = grace.load(adapter)
    engine: Any = model.engine
    lines = run(code_of(out, "def ask"))
    with serving(engine.model, engine.tokenizer, [3]) as server:
        remote = OpenAIEngine(server.url, out)
        same(answers(remote), answers(engine))
        ended = [one for one in answers(engine) if one.confidence is not None]
        assert ended
        prompts = [PROMPTS[i] for i, one in enumerate(answers(engine)) if one in ended]
        given = [one.token_ids for one in ended]
        scored = remote.confidences(prompts, given)
        assert scored == pytest.approx([one.confidence for one in ended], abs=1e-5)
        record = engine.tokenizer.encode('{"a": "Paris", "b": 12}')
        (ours,), (theirs,) = (one.rated(PROMPTS[:1], [record]) for one in (engine, remote))
        assert {name: one["value"] for name, one in theirs.fields.items()} == {
            "a": "Paris",
            "b": 12,
        }
        for name, one in theirs.fields.items():
            c = ours.fields[name]["confidence"]
            assert one["confidence"] == pytest.approx(c, abs=1e-5)
        remote.close()
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
        for question in ("What is 3 and 21?", "Who wrote it?", "Why?"):
            text, c = lines["ask"](client, MODEL, question)
            reply = model.ask(question)
            assert c == (None if c is None else pytest.approx(reply.confidence, abs=1e-5))
            assert (c is None) == (reply.confidence is None)
            assert c is None or text == reply.text
        client.close()


def test_rows_of_another_width_are_refused_in_a_line(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    adapter = fitted("llama_tied", tmp_path)
    assert load_file(adapter / "rows.safetensors")["rows"].shape == (4, 32)
    save_file({"rows": np.zeros((2, 16), np.float32)}, adapter / "rows.safetensors")
    with pytest.raises(ModelError, match=r"shape \(2, 16\).*hidden size of 32"):
        TransformersEngine.load(tmp_path / "base", adapter=adapter)


@pytest.mark.parametrize("form", ["merged", "gguf"])
def test_code_that_has_no_prompt_asks_nothing(form: str, tmp_path: Path) -> None:
    """The prompt of a task of one's own is not known, and an empty one would get other answers."""
    adapter = fitted("llama_tied", tmp_path, task="mine:TASK")
    export_model(adapter, adapter, str(tmp_path / "base"), tmp_path / "out", form=form)
    code = code_of(tmp_path / "out", "def confidence")
    assert "PROMPT =" not in code and "def ask" not in code
    assert 0 < run(code)["confidence"]([(0.3, 0.2, 0.1)] * 2, [-0.5], -0.1) < 1
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "prompt of the training run cannot be written as text" in card


def test_transformers_loads_the_rows_by_the_lines_of_their_card(tmp_path: Path) -> None:
    """Most models come in half precision, and the rows are float32."""
    adapter, out = fitted("llama_untied", tmp_path), tmp_path / "out"
    tiny_models.model("llama_untied").to(torch.float16).save_pretrained(tmp_path / "base")
    export_model(adapter, adapter, str(tmp_path / "base"), out, form="adapter")
    names = run(code_of(out, "load_file").replace("path/to/this/directory", str(out)))
    engine = TransformersEngine.load(tmp_path / "base", adapter=adapter)
    tensor = torch.tensor([PROMPTS[0]])
    found, wanted = names["model"](tensor).logits, engine.model(tensor).logits
    assert np.allclose(found.detach().numpy(), wanted.detach().numpy(), atol=1e-5)


@pytest.mark.parametrize("form", ["adapter", "vllm-lora"])
def test_a_dtype_that_would_change_nothing_is_refused(form: str, tmp_path: Path) -> None:
    adapter, base = fitted("llama_untied", tmp_path), str(tmp_path / "base")
    with pytest.raises(ConfigError, match="--dtype float16 has no effect"):
        export_model(adapter, adapter, base, tmp_path / "out", form=form, dtype="float16")


@pytest.mark.parametrize("form, library", [("adapter", "grace-confidence"), ("vllm-lora", "peft")])
def test_a_card_names_a_library_that_loads_the_files(
    form: str, library: str, tmp_path: Path
) -> None:
    """PEFT cannot load an adapter of rows alone, but it loads the LoRA that is made of them."""
    adapter, out = fitted("qwen2", tmp_path), tmp_path / "out"
    export_model(adapter, adapter, str(tmp_path / "base"), out, form=form)
    assert (out / "adapter_config.json").exists() == (library == "peft")
    assert f"\nlibrary_name: {library}\n" in (out / "README.md").read_text(encoding="utf-8")
