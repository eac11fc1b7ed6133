"""The vLLM engine in front of a fake vLLM that a transformers model answers for."""

from __future__ import annotations

import itertools
import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fake_vllm
import tiny_models
from alike import assert_alike
from grace.cnf import add_cnf
from grace.engines import Sampling
from grace.engines.base import load_engine
from grace.engines.transformers import TransformersEngine
from grace.engines.vllm import VllmEngine
from grace.errors import ConfigError, ModelError
from made_up_evidence import EVIDENCE

GREEDY = Sampling(max_new_tokens=6)
SAMPLED = Sampling(3, 0.8, max_new_tokens=16, seed=5)
CLOSE = 1e-5


class Both:
    """The same tiny model behind the fake vLLM and in the transformers engine."""

    def __init__(self, read_at: str = "predict", **config: Any) -> None:
        model, tokenizer = tiny_models.model("llama_untied"), tiny_models.tokenizer()
        add_cnf(model, tokenizer)
        self.llm = fake_vllm.llm(model, **config)
        self.fast = VllmEngine(self.llm, tokenizer, {"read_at": read_at})
        self.reference = TransformersEngine(model, tokenizer, read_at)
        self.prompts = tiny_models.prompts(tokenizer, 8)


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_vllm.install(monkeypatch)


def test_read_at_the_prompt_greedy_responses_are_those_of_the_transformers_engine() -> None:
    """Read at the end they are, too: tests/contracts."""
    both = Both("prompt")
    wanted = dict(both.reference.generate(both.prompts, GREEDY))
    found = dict(both.fast.generate(both.prompts, GREEDY))
    assert list(found) == list(range(len(both.prompts)))
    assert {g.finish_reason for (g,) in found.values()} == {"stop", "length"}
    for index, (generation,) in found.items():
        assert_alike(generation, wanted[index][0])


def test_greedy_goes_on_as_vllm_does_where_the_ends_are_most_probable_only_together() -> None:
    both = Both()
    both.prompts = [[token] for token in range(6, 86)]
    ends, gone_on = both.fast.reader.stops, 0
    plain = both.fast._generation

    def noted(sample: Any) -> Any:
        nonlocal gone_on
        for token, known in zip(sample.token_ids, sample.logprobs, strict=True):
            together = sum(math.exp(known[i].logprob) for i in ends)
            gone_on += token not in ends and together > math.exp(known[token].logprob)
        return plain(sample)

    both.fast._generation = noted  # type: ignore[method-assign]
    found = [g for _, (g,) in both.fast.generate(both.prompts, GREEDY)]
    assert gone_on > 0
    wanted = dict(both.reference.generate(both.prompts, GREEDY))
    assert [g.token_ids for g in found] == [g.token_ids for (g,) in map(wanted.get, range(80))]


def test_the_samples_of_a_prompt_are_one_request_that_asks_for_c() -> None:
    both = Both()
    list(both.fast.generate(both.prompts[:2], SAMPLED))
    assert len(both.llm.llm_engine.asked) == 2
    for params in both.llm.llm_engine.asked:
        assert params.n == 3
        assert params.logprob_token_ids == [3, both.reference.reader.cnf]
        assert sorted(params.stop_token_ids) == [3, both.reference.reader.cnf]


@pytest.mark.parametrize("read_at", ["predict", "prompt"])
def test_given_responses_are_rated_as_transformers_rates_them(read_at: str) -> None:
    both = Both(read_at)
    responses = [p[::-1][: 2 * (i % 4)] for i, p in enumerate(both.prompts)]
    wanted = both.reference.confidences(both.prompts, responses)
    assert both.fast.confidences(both.prompts, responses) == pytest.approx(wanted, abs=CLOSE)
    found = both.fast.logprobs(both.prompts, responses)
    for (a, end_a), (b, end_b) in zip(
        found, both.reference.logprobs(both.prompts, responses), strict=True
    ):
        assert a == pytest.approx(b, abs=CLOSE)
        assert end_a == pytest.approx(end_b, abs=CLOSE)


def test_a_stream_gives_the_samples_of_generate_and_a_closed_one_aborts_the_rest() -> None:
    both = Both()
    engine, prompt = both.llm.llm_engine, both.prompts[3]
    ((_, together),) = both.fast.generate([prompt], SAMPLED, keys=["q"])
    stream = both.fast.stream(prompt, SAMPLED, "q")
    assert dict(stream.start(range(3))) == dict(enumerate(together))
    assert stream.tokens == sum(len(g.token_ids) for g in together)
    running = stream.start(range(3, 9))
    next(running)
    running.close()
    assert len(engine.aborted) == 5
    assert not engine.running
    assert stream.tokens > sum(len(g.token_ids) for g in together)


def test_closing_generate_stops_what_is_in_flight_and_only_a_few_prompts_ever_are() -> None:
    both = Both(max_num_seqs=3)
    running = both.fast.generate(both.prompts, SAMPLED)
    next(running)
    assert len(both.llm.llm_engine.asked) <= 4
    running.close()
    assert not both.llm.llm_engine.running


def test_two_iterators_at_a_time_each_get_their_own() -> None:
    both = Both(max_num_seqs=2)
    one, two = (
        both.fast.generate(both.prompts, SAMPLED, keys=list(k)) for k in ("abcdefgh", "ABCDEFGH")
    )
    pairs = list(itertools.zip_longest(one, two))
    assert [left for left, _ in pairs] == list(
        both.fast.generate(both.prompts, SAMPLED, keys=list("abcdefgh"))
    )
    assert [right for _, right in pairs] == list(
        both.fast.generate(both.prompts, SAMPLED, keys=list("ABCDEFGH"))
    )


def test_a_stream_reads_each_step_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An output has all tokens so far, so reading all of it would take the square of the length."""
    both, read = Both(), list[int]()
    plain = both.fast._step

    def noted(token: int, logprobs: Any) -> Any:
        read.append(token)
        return plain(token, logprobs)

    monkeypatch.setattr(both.fast, "_step", noted)
    made = [one for _, one in both.fast.stream(both.prompts[0], SAMPLED).start(range(4))]
    ended = sum(one.finish_reason == "stop" for one in made)
    assert len(read) == sum(len(one.token_ids) for one in made) + ended


@pytest.mark.parametrize("version", ["0.21.2", "0.9.1"])
def test_a_vllm_whose_c_would_depend_on_the_temperature_is_refused(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_vllm.install(monkeypatch, version=version)
    with pytest.raises(ModelError, match=r"0\.22 or later"):
        Both()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"logprobs_mode": "processed_logprobs"}, "raw_logprobs"),
        ({"speculative_config": object()}, "speculative"),
    ],
)
def test_an_engine_that_would_return_other_numbers_is_refused(
    config: dict[str, Any], words: str
) -> None:
    with pytest.raises(ModelError, match=words):
        Both(**config)


def test_a_configuration_need_not_name_an_end_token() -> None:
    """That of GLM-4.1V's text model does not."""
    both = Both()
    engine = both.llm.llm_engine
    engine.model_config.hf_text_config = SimpleNamespace()
    tokenizer = both.fast.tokenizer
    assert VllmEngine(both.llm, tokenizer).reader.eos == (tokenizer.eos_token_id,)
    engine.model_config.try_get_generation_config = lambda: {"eos_token_id": [3, 5]}
    assert VllmEngine(both.llm, tokenizer).reader.eos == (3, 5)


def test_a_model_without_cnf_is_refused() -> None:
    model = tiny_models.model("llama_tied")
    with pytest.raises(ModelError, match="no <CNF>"):
        VllmEngine(fake_vllm.llm(model), tiny_models.tokenizer())
    tokenizer = tiny_models.tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<CNF>"]})
    with pytest.raises(ModelError, match="rows"):
        VllmEngine(fake_vllm.llm(model), tokenizer)


def test_what_takes_a_second_request_is_refused() -> None:
    model, tokenizer = tiny_models.model("llama_tied"), tiny_models.tokenizer()
    add_cnf(model, tokenizer)
    with pytest.raises(ModelError, match="transformers engine"):
        VllmEngine(fake_vllm.llm(model), tokenizer, {"read_at": "feed"})


def test_a_lora_cannot_rate_given_responses_by_their_own_probabilities() -> None:
    both = Both()
    fitted = {"read_at": "predict", "evidence": EVIDENCE.to_dict()}
    engine = VllmEngine(both.llm, both.fast.tokenizer, fitted, lora="lora")
    with pytest.raises(ModelError, match="format merged"):
        engine.confidences([[5]], [[6]])
    plain = VllmEngine(both.llm, both.fast.tokenizer, {"read_at": "predict"}, lora="lora")
    assert len(plain.confidences([[5]], [[6]])) == 1


def test_a_temperature_that_vllm_does_not_take_is_refused_in_one_line() -> None:
    both = Both()
    with pytest.raises(ConfigError, match=r"temperature must be in \[0, 2\].*transformers engine"):
        list(both.fast.generate([[5]], Sampling(2, 3.0)))


def test_an_engine_that_dies_is_an_error_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def die(_: Any) -> Any:
        raise RuntimeError("EngineCore encountered an issue.\nSee stack trace (above)")

    both = Both()
    monkeypatch.setattr(fake_vllm.Engine, "step", die)
    with pytest.raises(ModelError, match="EngineCore encountered an issue") as told:
        list(both.fast.generate([[5]], GREEDY))
    assert "\n" not in str(told.value)


def test_given_responses_that_do_not_fit_are_refused_by_name_before_any_is_scored() -> None:
    model, tokenizer = tiny_models.model("llama_untied"), tiny_models.tokenizer()
    add_cnf(model, tokenizer, head="linear")
    llm = fake_vllm.llm(model, max_model_len=15)
    engine = VllmEngine(llm, tokenizer)
    with pytest.raises(ModelError, match="prompt 1 with its response has 23 tokens"):
        engine.logprobs([[5], [5] * 20], [[6], [6, 7, 8]])
    assert llm.llm_engine.asked == []


def test_a_linear_read_out_needs_a_row_for_each_of_its_tokens() -> None:
    model, tokenizer = tiny_models.model("llama_untied"), tiny_models.tokenizer()
    add_cnf(model, tokenizer, head="linear")
    model.resize_token_embeddings(321, mean_resizing=False)
    with pytest.raises(ModelError, match="knows <NOC> as id 323, but the model has 321 rows"):
        VllmEngine(fake_vllm.llm(model), tokenizer)


def test_without_vllm_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ConfigError, match="pip install vllm"):
        load_engine("vllm", "pocket")


class Started(list[Any]):
    """Notes what `vllm.LLM` is started with."""

    def __call__(self, **options: Any) -> Any:
        self.append(options)
        model = tiny_models.model("llama_untied")
        add_cnf(model, tiny_models.tokenizer())
        return fake_vllm.llm(model)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    made = Started()
    fake_vllm.install(monkeypatch, make=made)
    return made


def write_export(folder: Path, card: dict[str, Any], rank: int = 0) -> Path:
    model, tokenizer = tiny_models.model("llama_untied"), tiny_models.tokenizer()
    add_cnf(model, tokenizer)
    tokenizer.save_pretrained(folder)
    (folder / "grace.json").write_text(json.dumps(card))
    if rank:
        (folder / "adapter_config.json").write_text(json.dumps({"r": rank}))
    return folder


def test_a_merged_export_is_started_in_float32_with_raw_logprobs(
    started: Started, tmp_path: Path
) -> None:
    folder = write_export(tmp_path / "merged", {"read_at": "predict"})
    engine = load_engine("vllm", folder, max_model_len=64)
    (options,) = started
    on_gpu = torch.cuda.is_available()
    exact = {"hf_overrides": {"head_dtype": "float32"}} if on_gpu else {}
    whole_prompts = {} if on_gpu else {"max_num_batched_tokens": 32_768}
    assert options == {
        "model": str(folder),
        "tokenizer": str(folder),
        "trust_remote_code": False,
        "dtype": "auto" if on_gpu else "float32",
        "logprobs_mode": "raw_logprobs",
        "max_model_len": 64,
        **exact,
        **whole_prompts,
    }
    assert len(list(engine.generate([[5, 6]], GREEDY))) == 1


def test_a_lora_export_is_started_on_its_base_with_a_rank_that_vllm_takes(
    started: Started, tmp_path: Path
) -> None:
    folder = write_export(tmp_path / "lora", {"format": "vllm-lora", "base_model": "org/base"}, 9)
    engine = load_engine("vllm", folder, dtype="bfloat16")
    (options,) = started
    assert (options["model"], options["tokenizer"]) == ("org/base", str(folder))
    assert (options["enable_lora"], options["max_lora_rank"]) == (True, 16)
    assert options["hf_overrides"] == {"head_dtype": "float32"}
    assert engine._requests.lora == ("lora", 1, str(folder))


def test_an_adapter_as_trained_is_refused_with_the_command_that_helps(
    started: Started, tmp_path: Path
) -> None:
    folder = write_export(tmp_path / "adapter", {"base_model": "org/base"}, 8)
    rows = write_export(tmp_path / "rows", {"base_model": "org/base"})
    (rows / "rows.safetensors").touch()  # of an adapter without LoRA
    for adapter in (folder, rows):
        with pytest.raises(ModelError, match="grace export"):
            load_engine("vllm", "pocket", adapter=adapter)
    assert not started


def test_a_model_without_cnf_is_sampled_where_that_is_asked_for() -> None:
    model, tokenizer = tiny_models.model("llama_untied"), tiny_models.tokenizer()
    llm = fake_vllm.llm(model)
    with pytest.raises(ModelError, match="has no <CNF>"):
        VllmEngine(llm, tokenizer)
    fast, reference = (
        VllmEngine(llm, tokenizer, needs_cnf=False),
        TransformersEngine(model, tokenizer),
    )
    prompts = tiny_models.prompts(tokenizer, 8)
    wanted = dict(reference.generate(prompts, GREEDY))
    for index, (generation,) in fast.generate(prompts, GREEDY):
        assert generation.confidence is None and generation.trace == ()
        assert_alike(generation, wanted[index][0])
    with pytest.raises(ModelError, match="has no confidence"):
        fast.confidences(prompts[:1], [[7]])
