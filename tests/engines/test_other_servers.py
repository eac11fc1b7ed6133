"""llama-server, SGLang and Ollama, made up: what is read from them, and what is refused."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny_models
from fake_servers import LlamaServer, Ollama, SGLang
from fake_upstream import Server, serving
from grace.cnf import add_cnf, set_rows
from grace.engines import Sampling
from grace.engines.http.upstream import UpstreamError
from grace.engines.openai import OpenAIEngine
from grace.engines.transformers import TransformersEngine
from grace.errors import ModelError

SAMPLED = Sampling(2, 0.8, max_new_tokens=10, seed=5)
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")


@pytest.fixture
def model() -> tuple[Any, Any]:
    made, tokenizer = tiny_models.model("llama_untied"), tiny_models.tokenizer()
    cnf = add_cnf(made, tokenizer, head="linear")
    rows = torch.randn(4, 32, generator=torch.Generator().manual_seed(7))
    set_rows(made, cnf.readout, rows)
    return made, tokenizer


@pytest.fixture
def folder(model: tuple[Any, Any], tmp_path: Path) -> Path:
    model[1].save_pretrained(tmp_path / "out")
    card = {"read_at": "predict", "adapter_digest": "abc"}
    (tmp_path / "out" / "grace.json").write_text(json.dumps(card))
    return tmp_path / "out"


@pytest.fixture
def llama(model: tuple[Any, Any]) -> Iterator[Server]:
    with serving(*model, [3], LlamaServer) as server:
        yield server


@pytest.fixture
def sglang(model: tuple[Any, Any]) -> Iterator[Server]:
    with serving(*model, [3], SGLang) as server:
        yield server


@contextlib.contextmanager
def engine(server: Server, folder: Path) -> Iterator[OpenAIEngine]:
    made = OpenAIEngine(server.url, folder, retries=0)
    try:
        yield made
    finally:
        made.close()


def refused(server: Server, folder: Path, words: str) -> None:
    with pytest.raises((ModelError, UpstreamError), match=words) as told, engine(server, folder):
        pass
    assert "\n" not in str(told.value)


def test_ollama_is_refused_with_the_reason_and_the_alternative(
    model: tuple[Any, Any], folder: Path
) -> None:
    with serving(*model, [3], Ollama) as server:
        refused(server, folder, "20 most probable tokens .* with llama-server")


@pytest.mark.parametrize("fails", ["speculative", "truncates"])
def test_a_llama_server_that_lists_less_than_all_is_refused(
    fails: str, llama: Server, folder: Path
) -> None:
    llama.behaviour.fails = fails
    refused(llama, folder, "do not sum to 1; if it decodes speculatively, start it without")


def test_what_float32_cannot_say_is_an_error_and_not_a_confidence(
    llama: Server, folder: Path
) -> None:
    with engine(llama, folder) as made:
        llama.behaviour.fails = "underflow"
        with pytest.raises(UpstreamError, match="too small to be listed"):
            made.confidences([[5, 6]], [[7]])


def test_a_llama_server_without_the_row_is_refused(
    llama: Server, folder: Path, model: tuple[Any, Any]
) -> None:
    model[0].config.vocab_size -= 2
    refused(llama, folder, "no row for <CNF> .* serve what `grace export` wrote")


def test_a_token_within_a_character_is_read_like_any_other(
    llama: Server, folder: Path, model: tuple[Any, Any]
) -> None:
    """llama-server lists nothing of a step whose text ends within a character."""
    cut = model[1].convert_tokens_to_ids("\u00f0")  # the first byte of an emoji
    reference = TransformersEngine(*model)
    with engine(llama, folder) as made:
        wanted = reference.next_token_probs([[5, cut]], [cut, 9])
        assert made.next_token_probs([[5, cut]], [cut, 9]) == pytest.approx(wanted, abs=1e-6)
        set_to_cut = model[0].get_output_embeddings().weight
        with torch.no_grad():
            set_to_cut[cut] = set_to_cut[3] * 1.2  # now the most probable in many places
        drawn = [one for _, (one,) in made.generate([[5], [6], [7]], Sampling(max_new_tokens=4))]
        assert any(cut in one.token_ids for one in drawn)


def test_a_llama_server_gets_as_many_requests_at_a_time_as_it_has_slots(
    llama: Server, folder: Path
) -> None:
    """More connections than it has threads would wait for each other."""
    with engine(llama, folder) as made:
        assert made._upstream.max_in_flight == 4


def test_the_context_of_a_llama_server_is_that_of_a_slot(
    llama: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llama.behaviour.context = 40
    for named in (True, False):
        monkeypatch.setattr(LlamaServer, "names_context", named)
        with engine(llama, folder) as made:
            assert made.limit == 40


def test_a_llama_server_that_describes_itself_otherwise_is_refused(
    llama: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for slots in ("many", math.inf):
        monkeypatch.setattr(LlamaServer, "slots", slots)
        refused(llama, folder, "in another form than llama-server's")


def test_a_llama_server_of_another_export_is_refused(
    llama: Server, folder: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "model.gguf").touch()
    (other / "grace.json").write_text(json.dumps({"adapter_digest": "other"}))
    llama.behaviour.root = str(other / "model.gguf")
    refused(llama, folder, "made from another adapter than .*out, so confidences would be wrong")


def test_samples_of_llama_server_are_drawn_here_and_depend_on_seed_key_and_number(
    llama: Server, folder: Path
) -> None:
    prompt = [5, 6, 7]
    with engine(llama, folder) as made:
        whole = dict(made.generate([prompt], SAMPLED, keys=["q"]))[0]
        assert dict(made.stream(prompt, SAMPLED, "q").start(range(2))) == dict(enumerate(whole))
        narrow = Sampling(4, 2.0, top_p=1e-6, max_new_tokens=6)
        (greedy,) = dict(made.generate([prompt], Sampling(max_new_tokens=6)))[0]
        assert {one.token_ids for one in dict(made.generate([prompt], narrow))[0]} == {
            greedy.token_ids
        }


def test_an_sglang_that_scales_by_the_temperature_is_refused(sglang: Server, folder: Path) -> None:
    sglang.behaviour.processed = True
    refused(sglang, folder, "at one temperature .* SGLANG_RETURN_ORIGINAL_LOGPROB=1")


def test_an_sglang_that_decodes_speculatively_is_refused(sglang: Server, folder: Path) -> None:
    sglang.behaviour.fails = "speculative"
    refused(sglang, folder, "without --speculative-algorithm")


def test_an_sglang_that_forgets_named_ids_later_fails_the_request(
    sglang: Server, folder: Path
) -> None:
    with engine(sglang, folder) as made:
        sglang.behaviour.fails, sglang.behaviour.after = "forgets", 1
        with pytest.raises(UpstreamError, match="did not list ids"):
            list(made.generate([[5, 6, 7]], Sampling(max_new_tokens=6)))


def test_the_bias_of_an_sglang_is_taken_off_what_it_lists(
    sglang: Server, folder: Path, model: tuple[Any, Any]
) -> None:
    reference = TransformersEngine(*model)
    with engine(sglang, folder) as made:
        responses = [one for _, (one,) in made.generate([[5, 6], [7]], Sampling(max_new_tokens=8))]
        assert any("logit_bias" in r["sampling_params"] for r in sglang.behaviour.requests)
        wanted = reference.generate([[5, 6], [7]], Sampling(max_new_tokens=8))
        for found, (_, (own,)) in zip(responses, wanted, strict=True):
            assert found.trace == pytest.approx(own.trace, abs=1e-5)
            assert found.logprobs == pytest.approx(own.logprobs, abs=1e-5)
