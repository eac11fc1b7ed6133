"""What every engine does alike: transformers, and vLLM and servers (made up here)."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fake_upstream
import fake_vllm
import real_llama_server
import tiny_models
import tiny_run
from alike import assert_alike
from fake_servers import LlamaServer, SGLang
from grace import plugins
from grace.cli import main
from grace.cnf import add_cnf, set_rows
from grace.engines import Response, Sampling
from grace.engines.base import ModelEngine, StepEngine, load_engine
from grace.engines.transformers import TransformersEngine
from grace.errors import GraceError
from grace.export.gguf_weights import write_weights
from grace.store import RunDir
from made_up_evidence import EVIDENCE, TRACE

KINDS = ("transformers", "vllm", "openai")
SERVERS = {"openai": None, "openai-llama": LlamaServer, "openai-sglang": SGLang}
ITSELF = ["openai-itself"] if os.environ.get("GRACE_LLAMA_SERVER") else []  # the program itself
GREEDY = Sampling(max_new_tokens=6)
SAMPLED = Sampling(2, 0.8, max_new_tokens=16, seed=5)
TRACED = dataclasses.replace(EVIDENCE, trace=TRACE)
CLOSE = 1e-5
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")


def model_of(head: str) -> Any:
    """Return a tiny model whose rows are random, its tokenizer, and its evidence."""
    model, tokenizer = tiny_models.model("llama_untied"), tiny_models.tokenizer()
    linear = head == "linear"
    cnf = add_cnf(model, tokenizer, head="linear" if linear else "token")
    if linear:
        generator = torch.Generator().manual_seed(7)
        set_rows(model, cnf.readout, torch.randn(4, 32, generator=generator))
    return model, tokenizer, TRACED if linear else None


@pytest.fixture(scope="module", params=["token", "linear"])
def head(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def reference(head: str) -> TransformersEngine:
    model, tokenizer, evidence = model_of(head)
    return TransformersEngine(model, tokenizer, evidence=evidence)


@pytest.fixture(scope="module", params=[*KINDS, *list(SERVERS)[1:], *ITSELF])
def engine(
    request: pytest.FixtureRequest, head: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """An engine that was opened by its name, of what an export holds."""
    model, tokenizer, evidence = model_of(head)
    kind = request.param.partition("-")[0]
    folder = tmp_path_factory.mktemp("model")
    if request.param == "openai-itself":
        write_weights(folder / "model.gguf", model, tokenizer, np.float32, [3])
    else:
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    card = {"read_at": "predict", "evidence": evidence and evidence.to_dict()}
    (folder / "grace.json").write_text(json.dumps(card))
    (folder / "generation_config.json").write_text('{"eos_token_id": [3, -1, 99999]}')
    served = fake_upstream.serving(model, tokenizer, [3], SERVERS.get(request.param))
    if request.param == "openai-itself":
        served = real_llama_server.serving(folder / "model.gguf")
    with pytest.MonkeyPatch.context() as patch, served as server:
        fake_vllm.install(patch, make=fake_vllm.load)
        options = {"url": server.url} if kind == "openai" else {}
        opened = load_engine(kind, folder, **options)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    return tiny_models.prompts(tiny_models.tokenizer(), 6)


@pytest.fixture(scope="module")
def sampled(engine: Any, prompts: Any) -> list[tuple[list[int], Response]]:
    """Samples of every prompt, each with its prompt."""
    return [(prompts[i], one) for i, made in engine.generate(prompts, SAMPLED) for one in made]


def test_greedy_answers_are_the_same_tokens_with_the_same_c(
    engine: Any, reference: TransformersEngine, prompts: Any
) -> None:
    found, wanted = (
        dict(engine.generate(prompts, GREEDY)),
        dict(reference.generate(prompts, GREEDY)),
    )
    assert {one.finish_reason for (one,) in wanted.values()} == {"stop", "length"}
    for index, (one,) in found.items():
        assert_alike(one, wanted[index][0])


def test_every_engine_says_how_it_is_read(
    engine: Any, reference: TransformersEngine, head: str
) -> None:
    assert (engine.read_at, engine.readout) == ("predict", reference.readout)
    assert engine.reader.eos == (3,)  # of the three in generation_config.json, two are no tokens
    assert engine.evidence == (TRACED if head == "linear" else None)


def test_samples_have_the_c_and_the_probabilities_that_reading_them_again_gives(
    engine: Any, sampled: Any, prompts: Any
) -> None:
    assert len({one.token_ids for _, one in sampled}) > len(prompts)
    ended = [(p, one) for p, one in sampled if one.finish_reason == "stop"]
    contexts, responses = [p for p, _ in ended], [one.token_ids for _, one in ended]
    again = engine.confidences(contexts, responses)
    said = [c if one.text.strip() else None for (_, one), c in zip(ended, again, strict=True)]
    assert [one.confidence for _, one in ended] == pytest.approx(said, abs=CLOSE)
    rated = engine.logprobs(contexts, responses)
    for (_, one), (logprobs, end) in zip(ended, rated, strict=True):
        assert one.logprobs == pytest.approx(logprobs, abs=1e-4)
        assert one.end_logprob == pytest.approx(end, abs=1e-4)


def test_c_along_the_way_is_that_of_reading_the_answer_again(
    engine: Any, head: str, sampled: Any
) -> None:
    ended = [(p, one) for p, one in sampled if one.finish_reason == "stop"]
    given = [p for p, _ in ended], [one.token_ids for _, one in ended]
    if head != "linear":
        with pytest.raises(GraceError, match="at the end of an answer only") as refused:
            engine.traces(*given)
        assert "\n" not in str(refused.value)
        return
    for (_, one), again in zip(ended, engine.traces(*given), strict=True):
        assert again == pytest.approx(one.trace, abs=CLOSE)
        last = pytest.approx(one.trace[-1], abs=1e-12)  # the sums of the two differ in the last bit
        assert one.confidence == (last if one.text.strip() else None)
    halfway = [one.trace[len(one.trace) // 2] for _, one in ended if len(one.trace) > 2]
    assert np.std(halfway) > 0.01


def test_a_response_ends_where_an_end_was_drawn_and_a_cut_one_has_no_confidence(
    engine: Any, head: str, prompts: Any
) -> None:
    sampling = dataclasses.replace(SAMPLED, max_new_tokens=4, num_samples=4)
    made = [one for _, samples in engine.generate(prompts, sampling) for one in samples]
    assert {one.finish_reason for one in made} == {"stop", "length"}
    never = {3, *engine.readout.ids}
    for one in made:
        assert not never & set(one.token_ids)
        ended = one.finish_reason == "stop"
        assert ended == (one.end_logprob is not None)
        assert (one.confidence is not None) == (ended and bool(one.text.strip()))
        assert len(one.trace) == len(one.token_ids) + ended


def test_a_closed_stream_starts_no_token_more(engine: Any, prompts: Any) -> None:
    stream = engine.stream(prompts[3], SAMPLED, "q")
    running = stream.start(range(4))
    number, first = next(running)
    running.close()
    tokens = stream.tokens
    assert 0 <= number < 4 and tokens >= len(first.token_ids)
    again = dict(engine.stream(prompts[3], SAMPLED, "q").start(range(number, number + 1)))
    assert again[number].token_ids == first.token_ids
    assert stream.tokens == tokens


def test_probabilities_of_next_tokens_are_those_of_the_model(
    engine: Any, reference: TransformersEngine, prompts: Any
) -> None:
    tokens = list(range(4, 40))
    wanted = reference.next_token_probs(prompts, tokens)
    assert engine.next_token_probs(prompts, tokens) == pytest.approx(wanted, abs=CLOSE)


def test_a_plan_has_every_prompt_once(engine: Any, prompts: Any) -> None:
    many = prompts * 100
    plan = engine.plan(many, 2, 16)
    assert sorted(i for unit in plan for i in unit) == list(range(len(many)))
    assert plan == engine.plan(many, 2, 16)


def test_states_come_from_an_engine_that_says_so_and_are_refused_by_others(
    engine: Any, reference: TransformersEngine, prompts: Any
) -> None:
    responses = [[9, 10], [11], []]
    if "states" in engine.gives:
        for found, wanted in zip(
            engine.features(prompts[:3], responses),
            reference.features(prompts[:3], responses),
            strict=True,
        ):
            np.testing.assert_allclose(found, wanted, atol=CLOSE)
    else:
        with pytest.raises(GraceError, match="use the transformers engine") as refused:
            engine.features(prompts[:3], responses)
        assert "\n" not in str(refused.value)


def test_an_empty_prompt_and_one_beyond_the_context_are_refused_before_anything_runs(
    engine: Any,
) -> None:
    for prompts, words in (([[]], "no tokens"), ([[5] * 5000], "context is")):
        if engine.limit is None and words != "no tokens":
            continue
        with pytest.raises(GraceError, match=words):
            list(engine.generate(prompts, GREEDY))


def test_a_response_that_is_too_long_to_be_rated_is_refused_with_its_prompt(engine: Any) -> None:
    if engine.limit is not None:
        length = rf"the prompt with its response has {engine.limit + 1} tokens[^;]*; shorten it$"
        with pytest.raises(GraceError, match=length):
            engine.confidences([[5]], [[6] * engine.limit])


@pytest.mark.parametrize("base", [ModelEngine, StepEngine])
def test_an_engine_that_lacks_a_method_is_refused_before_it_is_used(base: type) -> None:
    class Unfinished(base): ...

    with pytest.raises(TypeError, match="abstract method"):
        Unfinished()


def test_the_folder_is_the_list_of_engines() -> None:
    assert set(plugins.find("grace.engines")) == set(KINDS)


def grace(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 0


OWN = """
from dataclasses import replace

from grace.engines.transformers import TransformersEngine


class Loud(TransformersEngine):
    gives = frozenset()

    @classmethod
    def open(cls, opening):
        assert opening.options == {"word": "ahem", "times": 2}
        return cls.load(opening.path, stop=opening.stop)

    def generate(self, prompts, sampling, *, keys=None):
        for index, made in super().generate(prompts, sampling, keys=keys):
            yield index, [replace(one, text="ahem " + one.text) for one in made]
"""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny `model`, `questions.jsonl` and a `run` that transformers has sampled."""
    folder = tmp_path_factory.mktemp("plain")
    tiny_run.write_model(folder / "model")
    tiny_run.write_questions(folder / "questions.jsonl")
    grace([*tiny_run.run_arguments(folder / "run", *inputs(folder)), "--until", "sample"])
    return folder


def inputs(folder: Path) -> tuple[Path, Path]:
    return folder / "model", folder / "questions.jsonl"


@pytest.mark.parametrize("kind", ["vllm", "openai", "loud_engine:Loud"])
def test_a_run_samples_with_another_engine_and_trains_with_transformers(
    kind: str, plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine of one's own is one file, and used end to end."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GRACE_TRUST", "")
    fake_vllm.install(monkeypatch, make=fake_vllm.load)
    (tmp_path / "loud_engine.py").write_text(OWN)
    local = TransformersEngine.load(plain / "model")
    with fake_upstream.serving(local.model, local.tokenizer, list(local.reader.stops)) as server:
        options = {"openai": [f"url={server.url}"], "vllm": []}.get(kind, ["word=ahem", "times=2"])
        engine = ["--set", f"model.engine={kind}"]
        engine += ["--set", f"model.engine_options={json.dumps(options)}"]
        until = [] if kind == "loud_engine:Loud" else ["--until", "sample"]
        grace([*tiny_run.run_arguments(tmp_path / "run", *inputs(plain)), *engine, *until])
    found, wanted = (
        RunDir(folder / "run").split("validation").responses.read() for folder in (tmp_path, plain)
    )
    by_id = {row.id: row for row in wanted}
    assert sorted(by_id) == sorted(row.id for row in found)
    for row in found:
        assert row.token_ids == by_id[row.id].token_ids
        assert row.text.startswith("ahem ") == (kind == "loud_engine:Loud")
    assert (tmp_path / "run" / "report.json").is_file() == (not until)
