"""A GGUF export holds the model that was trained: its weights, its ends, `<CNF>` as a row."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from test_forms import export, logits, same, train
from test_linear import BOUNDED, fitted
from tokenizers import pre_tokenizers

import grace
import tiny_gguf
import tiny_models
from grace.cnf import TOKENS
from grace.engines import Sampling
from grace.engines.base import load_engine
from grace.engines.gguf import resolve_model
from grace.engines.reading import named_ends
from grace.engines.transformers import TransformersEngine
from grace.errors import ConfigError, ModelError
from grace.export import export_model
from grace.export.gguf_weights import write_weights
from grace.pipeline.stages.fit import write_rows_adapter
from tiny_lora import Trained

pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*tie_word_embeddings.*"),
]
PROMPTS = [tiny_models.tokenizer().encode(text) for text in tiny_models.SENTENCES]


def read_back(folder: Path) -> Any:
    """Return the model that transformers reads from the file."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, gguf_file="model.gguf", dtype=torch.float32
    )
    return model.eval()


def fields(file: Path) -> dict[str, Any]:
    reader = gguf.GGUFReader(file)
    return {
        name: field.contents()
        for name, field in reader.fields.items()
        if not name.startswith("GGUF.")
    }


@pytest.mark.parametrize("name", ["llama_tied", "llama_untied", "tied_padded", "qwen2"])
def test_the_file_has_the_logits_of_the_trained_model(name: str, tmp_path: Path) -> None:
    made = train(name, tmp_path)
    export(made, tmp_path / "out", "gguf")
    same(logits(read_back(tmp_path / "out")), logits(made.engine.model), 3e-5)


def test_half_precision_is_the_default_and_moves_logits_little(tmp_path: Path) -> None:
    made = train("llama_untied", tmp_path)
    export_model(made.adapter, made.adapter, str(made.base), tmp_path / "out", form="gguf")
    kinds = {
        t.name: t.tensor_type.name for t in gguf.GGUFReader(tmp_path / "out/model.gguf").tensors
    }
    assert set(kinds.values()) == {"F16", "F32"}
    assert all(kind == "F32" for name, kind in kinds.items() if "norm" in name)
    same(logits(read_back(tmp_path / "out")), logits(made.engine.model), 0.02)


def test_llama_cpp_stops_where_an_answer_ends(tmp_path: Path) -> None:
    """`<CNF>` alone ends a response, a linear read-out never; all are named control tokens."""
    made = train("llama_tied", tmp_path / "token")
    export(made, tmp_path / "out", "gguf")
    cnf = made.engine.reader.cnf
    found = fields(tmp_path / "out" / "model.gguf")
    assert found["tokenizer.ggml.eos_token_id"] == 3
    assert found["tokenizer.ggml.eom_token_id"] == cnf
    assert set(named_ends(tmp_path / "out")) == {3, cnf}
    (tmp_path / "linear").mkdir()
    adapter = fitted("llama_tied", tmp_path / "linear")
    out = tmp_path / "fitted"
    export_model(adapter, adapter, str(tmp_path / "linear" / "base"), out, form="gguf")
    found = fields(out / "model.gguf")
    ids = TransformersEngine.load(tmp_path / "linear" / "base", adapter=adapter).readout.ids
    assert "tokenizer.ggml.eom_token_id" not in found
    assert not set(ids) & set(named_ends(out))
    assert [found["tokenizer.ggml.tokens"][i] for i in ids] == [*TOKENS["linear"]]
    assert {found["tokenizer.ggml.token_type"][i] for i in ids} == {tiny_gguf.CONTROL}


def test_a_file_has_all_chat_templates(tmp_path: Path) -> None:
    model, tokenizer = tiny_models.model("llama_tied"), tiny_models.tokenizer()
    tokenizer.chat_template = {"default": "usual", "tool_use": "with tools"}
    write_weights(tmp_path / "model.gguf", model, tokenizer, np.float32, [3])
    found = fields(tmp_path / "model.gguf")
    assert found["tokenizer.chat_template"] == "usual"
    assert found["tokenizer.chat_template.tool_use"] == "with tools"


def test_an_export_is_not_loaded_here_but_served(tmp_path: Path) -> None:
    adapter, out = fitted("llama_untied", tmp_path), tmp_path / "out"
    done = export_model(adapter, adapter, str(tmp_path / "base"), out, form="gguf")
    assert done.hint.startswith(f"llama-server -m {out}/model.gguf")
    for load in (grace.load, functools.partial(load_engine, "transformers")):
        with pytest.raises(ModelError, match=rf"llama-server -m {out}.* --format merged$"):
            load(out)
    with pytest.raises(
        ModelError, match=rf"model\.gguf is one file of a model .* directory, {out}$"
    ):
        grace.load(out / "model.gguf")  # alone it has neither the evidence nor the prompt


def test_a_gguf_base_is_copied_with_the_rows_in_its_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Every architecture, every quantized tensor and all that the file says stay as they are."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model, tokenizer = tiny_models.model("llama_tied"), tiny_models.tokenizer()
    extra = {"general.note": "kept", "tokenizer.ggml.eot_token_id": 2}
    base = tiny_gguf.write(tmp_path / "b.gguf", model, tokenizer, quantize=True, extra=extra)
    engine = TransformersEngine.load(resolve_model(str(base)))
    rows = np.random.default_rng(0).normal(size=(4, 32)).astype(np.float16).astype(np.float32)
    metadata = {"base_model": str(base), "data": {"task": "jsonl", "prompt": "short"}}
    adapter, out = tmp_path / "adapter", tmp_path / "out"
    write_rows_adapter(engine, rows, BOUNDED, adapter, metadata)
    export_model(adapter, adapter, str(base), out, form="gguf")
    had, has = fields(base), fields(out / "model.gguf")
    changed = {name for name in had if had[name] != has[name]}
    assert changed == {"llama.vocab_size", "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"}
    assert "Duplicated" not in caplog.text
    assert has["tokenizer.ggml.tokens"][: len(tokenizer)] == had["tokenizer.ggml.tokens"]
    before, after = (
        {t.name: t for t in gguf.GGUFReader(file).tensors} for file in (base, out / "model.gguf")
    )
    assert {n for n in before if before[n].tensor_type != after[n].tensor_type} == {
        "token_embd.weight"
    }
    for name in set(before) - {"token_embd.weight"}:
        assert np.array_equal(before[name].data, after[name].data)
    assert {2, 3} <= set(named_ends(out))
    tuned = TransformersEngine.load(resolve_model(str(base)), adapter=adapter)
    reread = TransformersEngine(read_back(out), tuned.tokenizer, evidence=BOUNDED)
    sampling = Sampling(max_new_tokens=8)
    wanted = dict(tuned.generate(PROMPTS, sampling))
    for index, (one,) in reread.generate(PROMPTS, sampling):
        assert one.token_ids == wanted[index][0].token_ids
        assert one.confidence == pytest.approx(wanted[index][0].confidence, abs=2e-3)


def test_what_cannot_be_a_gguf_file_is_refused_with_the_alternative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused(
        train("phi3", tmp_path / "a"),
        ModelError,
        "type phi3 can be written as GGUF only with --dtype auto, .* convert_hf",
    )
    refused(train("llama_tied", tmp_path / "b", read_at="feed"), ModelError, "use --format merged")
    made = train("llama_tied", tmp_path / "c")
    refused(made, ConfigError, r"dtype 'int3' .* use auto, float32", dtype="int3")
    tokenizer = made.engine.tokenizer
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save_pretrained(made.adapter)
    refused(made, ModelError, "splits words by another rule than gpt-2, smollm, .*qwen2;")
    monkeypatch.setitem(sys.modules, "gguf", None)
    refused(made, ConfigError, r"--format gguf needs gguf, .*grace-confidence\[local\]")


def refused(made: Trained, kind: type[Exception], words: str, dtype: str = "auto") -> None:
    out = made.base.parent / "out"
    with pytest.raises(kind, match=words) as told:
        export_model(made.adapter, made.adapter, str(made.base), out, form="gguf", dtype=dtype)
    assert "\n" not in str(told.value)
    assert not out.exists()
