"""The llama engine in front of a fake llama-cpp-python that a transformers model answers for."""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fake_llama
import tiny_models
from grace.chat import encode_chat
from grace.cnf import add_cnf
from grace.engines import Sampling
from grace.engines.kinds import load_engine
from grace.engines.transformers import TransformersEngine
from grace.errors import ConfigError, ModelError
from grace.export.gguf_weights import write_weights

SAMPLED = Sampling(3, 0.8, top_p=0.9, max_new_tokens=12, seed=5)
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")


@pytest.fixture(autouse=True)
def llama(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_llama.install(monkeypatch)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path)
    return tmp_path


def write(folder: Path, read_at: str = "predict") -> TransformersEngine:
    """Write what an export holds; return the same model in the transformers engine."""
    model, tokenizer = tiny_models.model("llama_untied"), tiny_models.tokenizer()
    add_cnf(model, tokenizer, init="eos")
    write_weights(folder / "model.gguf", model, tokenizer, np.float32, [3], "abc")
    tokenizer.save_pretrained(folder)
    card = {"read_at": read_at, "adapter_digest": "abc", "format": "gguf"}
    (folder / "grace.json").write_text(json.dumps(card))
    return TransformersEngine(model, tokenizer, read_at)


@pytest.mark.parametrize("read_at", ["predict", "prompt"])
def test_samples_are_the_transformers_engines_own(read_at: str, tmp_path: Path) -> None:
    """The random numbers are the same, so even sampled tokens are."""
    reference = write(tmp_path, read_at)
    engine, prompts = load_engine("llama", tmp_path), tiny_models.prompts(reference.tokenizer, 6)
    keys = [f"q{i}" for i in range(6)]
    wanted = dict(reference.generate(prompts, SAMPLED, keys=keys))
    for index, made in engine.generate(prompts, SAMPLED, keys=keys):
        for found, own in zip(made, wanted[index], strict=True):
            assert found.token_ids == own.token_ids
            assert found.confidence == pytest.approx(own.confidence, abs=1e-5)
    responses = [[9, 10], [11], []]
    found_c = engine.confidences(prompts[:3], responses)
    assert found_c == pytest.approx(reference.confidences(prompts[:3], responses), abs=1e-5)


def test_a_context_is_computed_from_where_it_differs_from_the_last(folder: Path) -> None:
    engine: Any = load_engine("llama", folder)
    engine.next_token_probs([[5, 6, 7, 8]], [4])
    before = engine._llama.evaluated
    engine.next_token_probs([[5, 6, 7, 9], [5, 6, 7, 9], [5, 6]], [4])
    assert engine._llama.evaluated - before == 1 + 1 + 1


def test_a_recurrent_state_which_cannot_be_cut_is_computed_anew(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine: Any = load_engine("llama", folder)
    contexts = [[5, 6, 7, 8], [5, 6, 7, 9], [5, 6]]
    wanted = engine.next_token_probs(contexts, [4])
    monkeypatch.setattr(type(engine._llama), "recurrent", True)
    assert engine.next_token_probs(contexts, [4]) == pytest.approx(wanted)


def test_after_a_failure_the_next_context_is_computed_whole(folder: Path) -> None:
    engine: Any = load_engine("llama", folder)
    (wanted,) = engine.next_token_probs([[5, 6, 7]], [4, 5])
    engine._llama._n_ctx = 2
    with pytest.raises(ModelError, match="cannot compute a context of 4 tokens"):
        engine.next_token_probs([[5, 6, 7, 8]], [4])
    engine._llama._n_ctx = 512
    assert engine.next_token_probs([[5, 6, 7]], [4, 5])[0] == pytest.approx(wanted)


def test_the_cache_is_float32_and_options_are_llama_cpps(folder: Path) -> None:
    engine: Any = load_engine("llama", folder, n_ctx=64, n_batch=16)
    assert engine._llama.cache_types == (0, 0)
    assert (engine.limit, engine._llama.n_batch) == (64, 16)
    assert load_engine("llama", folder / "model.gguf").limit == 256  # the model's own


def test_the_context_is_as_long_as_asked_for(folder: Path) -> None:
    """llama.cpp rounds it up, but llama-cpp-python has no room for more tokens."""
    engine: Any = load_engine("llama", folder, n_ctx=10)
    assert len(engine.next_token_probs([[5] * 9], [4])) == 1
    with pytest.raises(ModelError, match="the model's context is 10"):
        engine.next_token_probs([[5] * 10], [4])


@pytest.mark.parametrize(("answer", "context"), [(0, 4096), (3000, 6000), (9000, 8192)])
def test_the_context_has_room_for_the_longest_answer(
    answer: int, context: int, tmp_path: Path
) -> None:
    model, tokenizer = tiny_models.model("llama_untied"), tiny_models.tokenizer()
    add_cnf(model, tokenizer, init="eos")
    model.config.max_position_embeddings = 8192
    write_weights(tmp_path / "model.gguf", model, tokenizer, np.float32, [3], "abc")
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "grace.json").write_text(json.dumps({"sample": {"max_new_tokens": answer}}))
    assert load_engine("llama", tmp_path).limit == context


def test_a_forgotten_engine_frees_its_model(folder: Path) -> None:
    """Before the process ends, where the library's own destructor prints a traceback."""
    engine: Any = load_engine("llama", folder)
    llama = engine._llama
    del engine
    gc.collect()
    assert llama.closed


def test_the_limit_of_threads_is_pytorchs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    limited: Any = load_engine("llama", folder)
    assert limited._llama.threads == (1, 1)
    monkeypatch.delenv("OMP_NUM_THREADS")
    free: Any = load_engine("llama", folder)
    assert free._llama.threads == (os.cpu_count(), os.cpu_count())


def test_what_is_no_export_for_llama_cpp_is_refused(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = tmp_path_factory.mktemp("empty")
    refused(ModelError, "0 GGUF files", empty)
    refused(ModelError, "is an adapter", folder, adapter=folder)
    refused(ConfigError, "n_gpu_layers=-1", folder, device="cuda")
    refused(ConfigError, "leave device and dtype", folder, dtype="float16")
    refused(ModelError, "llama.cpp cannot load", folder, n_ctx=-5)
    refused(ConfigError, "no option 'n_thread'", folder, n_thread=1)
    refused(ConfigError, "no option 'vocab_only'", folder, vocab_only=True)
    (empty / "model.gguf").write_bytes((folder / "model.gguf").read_bytes())
    refused(ModelError, "no tokenizer.json", empty)
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    refused(ConfigError, "pip install llama-cpp-python", folder)


def test_a_file_that_is_not_the_cards_is_refused(folder: Path) -> None:
    card = json.loads((folder / "grace.json").read_text())
    (folder / "grace.json").write_text(json.dumps({**card, "adapter_digest": "other"}))
    refused(ModelError, "rows of another adapter", folder)
    (folder / "grace.json").write_text(json.dumps(card))
    model, tokenizer = tiny_models.model("llama_untied"), tiny_models.tokenizer()
    write_weights(folder / "model.gguf", model, tokenizer, np.float32, [3], "abc")
    refused(ModelError, "has no <CNF> as token", folder)


def test_a_stream_stops_with_the_sample_that_is_enough(folder: Path) -> None:
    engine: Any = load_engine("llama", folder)
    prompt = tiny_models.prompts(engine.tokenizer, 4)[3]
    whole = dict(engine.stream(prompt, SAMPLED, "q").start(range(3)))
    stream = engine.stream(prompt, SAMPLED, "q")
    running = stream.start(range(3))
    number, first = next(running)
    running.close()
    assert (number, stream.tokens) == (0, len(first.token_ids))
    assert first == whole[0]
    later = dataclasses.replace(SAMPLED, first_sample=2, num_samples=1)
    assert dict(engine.generate([prompt], later, keys=["q"]))[0] == [whole[2]]


def refused(kind: type[Exception], words: str, folder: Path, **options: Any) -> None:
    with pytest.raises(kind, match=words) as told:
        load_engine("llama", folder, **options)
    assert "\n" not in str(told.value)


THINKS = "{% if enable_thinking is not defined or enable_thinking %}<think>{% endif %}"
THINKS += "{{ messages[0].content }}"


@pytest.mark.parametrize("thinking", [False, True])
def test_a_model_without_a_card_thinks_if_told_to(thinking: bool, folder: Path) -> None:
    (folder / "chat_template.jinja").write_text(THINKS)

    def asked() -> str:
        engine = load_engine("llama", folder, needs_cnf=False, thinking=thinking)
        ids = encode_chat(engine.tokenizer, [{"role": "user", "content": "?"}])
        return str(engine.tokenizer.decode(ids))

    assert asked() == "<think>?"  # as it was fitted
    (folder / "grace.json").unlink()
    assert asked() == "<think>" * thinking + "?"
