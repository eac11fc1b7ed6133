"""A model behind an HTTP server answers as it does in this process."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tiny_models
from fake_upstream import MODEL, Behaviour, Server, serving
from grace.chat import encode_chat
from grace.cnf import add_cnf
from grace.engines import Sampling
from grace.engines.base import load_engine
from grace.engines.http.upstream import UpstreamError
from grace.engines.openai import OpenAIEngine
from grace.engines.transformers import TransformersEngine
from grace.errors import ConfigError, ModelError
from grace.evidence import Evidence

LENGTH = 24


EVIDENCE = Evidence(
    (0.5, -0.2, 0.1, 0.3, 0.4, 0.2, 0.6, 1.2), (-1.0, -2.0, -3.0, 1.0, 0.2, 0.5, 0.6, 0.5), 0.1, 0.8
)


@pytest.fixture(scope="module")
def local() -> TransformersEngine:
    """A model in which `<CNF>` is as probable as EOS, with evidence."""
    model, tokenizer = tiny_models.model("llama_tied"), tiny_models.tokenizer()
    add_cnf(model, tokenizer)
    return TransformersEngine(model, tokenizer, evidence=EVIDENCE)


@pytest.fixture(scope="module")
def folder(local: TransformersEngine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What an export has besides its weights."""
    made = tmp_path_factory.mktemp("exported")
    local.tokenizer.save_pretrained(made)
    card = {"read_at": "predict", "evidence": local.evidence and local.evidence.to_dict()}
    (made / "grace.json").write_text(json.dumps(card))
    return made


@pytest.fixture(scope="module")
def server(local: TransformersEngine) -> Iterator[Server]:
    with serving(local.model, local.tokenizer, list(local.reader.eos)) as running:
        yield running


@pytest.fixture(autouse=True)
def fresh(server: Server) -> None:
    server.behaviour = Behaviour()


@pytest.fixture
def connect(server: Server, folder: Path) -> Iterator[Callable[..., OpenAIEngine]]:
    made: list[OpenAIEngine] = []

    def run(**options: Any) -> OpenAIEngine:
        engine = OpenAIEngine(server.url, folder, **options)
        made.append(engine)
        return engine

    yield run
    for engine in made:
        engine.close()


@pytest.fixture
def prompts(local: TransformersEngine) -> list[list[int]]:
    chats = [[{"role": "user", "content": f"What is {n} and {n * 7}?"}] for n in range(8)]
    return [encode_chat(local.tokenizer, chat) for chat in chats]  # type: ignore[arg-type]


def test_read_at_the_prompt_the_answers_are_those_of_a_model_without_cnf(
    prompts: Any, tmp_path: Path
) -> None:
    model, tokenizer = tiny_models.model("llama_untied"), tiny_models.tokenizer()
    add_cnf(model, tokenizer)
    local = TransformersEngine(model, tokenizer, "prompt")
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "grace.json").write_text('{"read_at": "prompt"}')
    with serving(model, tokenizer, list(local.reader.eos)) as own:
        engine = OpenAIEngine(own.url, tmp_path)
        sampling = Sampling(max_new_tokens=LENGTH)
        found = dict(engine.generate(prompts, sampling))
        for index, (wanted,) in local.generate(prompts, sampling):
            (made,) = found[index]
            assert made.token_ids == wanted.token_ids
            assert made.logprobs == pytest.approx(wanted.logprobs, abs=1e-4)
            assert made.confidence == pytest.approx(wanted.confidence, abs=1e-5)
        rated = engine.confidences(prompts[:2], [[40], []])
        assert rated == pytest.approx(local.confidences(prompts[:2], [[40], []]), abs=1e-5)
        ((own_logprobs, own_end),) = local.logprobs(prompts[:1], [[40]])
        ((logprobs, end),) = engine.logprobs(prompts[:1], [[40]])
        assert [*logprobs, end] == pytest.approx([*own_logprobs, own_end], abs=1e-4)
        engine.close()


@pytest.mark.parametrize("chunk", [1, 5])
def test_a_stream_says_what_the_whole_says(
    server: Server, connect: Any, prompts: Any, chunk: int
) -> None:
    server.behaviour.max_chunk = chunk
    engine = connect()
    sampling = Sampling(max_new_tokens=LENGTH)
    for prompt in prompts:
        ((_, (whole,)),) = engine.generate([prompt], sampling)
        stream = engine.stream(prompt, sampling)
        assert list(stream.start(range(1))) == [(0, whole)]
        assert stream.tokens == len(whole.token_ids)


def test_everything_that_a_generation_config_could_change_is_said(
    server: Server, connect: Any, prompts: Any
) -> None:
    list(connect().generate(prompts[:1], Sampling(max_new_tokens=4)))
    body = server.behaviour.requests[-1]
    neutral = {"top_k": 0, "min_p": 0, "repetition_penalty": 1, "top_p": 1, "temperature": 0}
    assert {name: body[name] for name in neutral} == neutral
    assert body["prompt"] == prompts[0]


def test_a_server_that_lists_the_most_probable_tokens_only_is_refused(
    server: Server, connect: Any
) -> None:
    server.behaviour = Behaviour(version="0.20.1", lists_ids=False)
    with pytest.raises(ModelError, match=r"vLLM 0\.20\.1 that lists .* use vLLM 0\.26 or later"):
        connect()


def test_a_server_that_names_tokens_by_their_texts_is_refused(server: Server, connect: Any) -> None:
    server.behaviour = Behaviour(version=None, names_ids=False)
    with pytest.raises((ModelError, UpstreamError), match=r"token ids|lists the most probable"):
        connect()


def test_closing_a_stream_hangs_up(server: Server, connect: Any, prompts: Any) -> None:
    engine = connect()
    server.behaviour.step_s = 0.05
    running = engine.stream(prompts[0], Sampling(8, 2.0, 1.0, 100, seed=1)).start(range(8))
    next(running)
    running.close()
    _until(lambda: server.behaviour.left > 0)


def test_a_caller_that_is_cancelled_gets_nothing_more(
    server: Server, connect: Any, prompts: Any
) -> None:
    from concurrent.futures import CancelledError

    engine = connect()
    gate = server.behaviour.gate = threading.Event()
    mine = engine.caller(math.inf)
    threading.Timer(0.3, mine.cancel).start()
    with pytest.raises(CancelledError):
        list(mine.generate(prompts, Sampling(1, 2.0, 1.0, 100)))
    with pytest.raises(CancelledError):
        mine.confidences(prompts[:1], [[5]])
    gate.set()
    assert engine.confidences(prompts[:1], [[5]])


def test_a_busy_server_is_asked_again_and_one_that_stays_busy_says_so(
    server: Server, connect: Any, prompts: Any
) -> None:
    engine = connect(retries=2)
    server.behaviour.busy = 2
    assert list(engine.generate(prompts[:1], Sampling(max_new_tokens=2)))
    server.behaviour = Behaviour(busy=100, retry_after="1")
    with pytest.raises(UpstreamError, match="answers 503: overloaded") as caught:
        list(engine.generate(prompts[:1], Sampling(max_new_tokens=2)))
    assert (caught.value.why, caught.value.retry_after_s) == ("busy", 1.0)
    assert len(server.behaviour.requests) == 3


def test_a_caller_with_less_patience_than_the_server_asks_for_hears_at_once(
    server: Server, connect: Any, prompts: Any
) -> None:
    engine = connect(retries=2)
    server.behaviour = Behaviour(busy=100, retry_after="20")
    hasty = engine.caller(time.monotonic() + 15)
    with pytest.raises(UpstreamError, match="answers 503") as caught:
        list(hasty.generate(prompts[:1], Sampling(max_new_tokens=2)))
    assert (caught.value.why, caught.value.retry_after_s) == ("busy", 20.0)
    assert len(server.behaviour.requests) == 1


@pytest.mark.parametrize(
    "fails, streams, why",
    [
        ("cut", True, "broken"),
        ("malformed", True, "malformed"),
        ("error", True, "failed"),
        ("malformed", False, "malformed"),
        ("empty", False, "malformed"),
        ("abort", False, "failed"),
        ("500", False, "failed"),
        ("forgets", False, "malformed"),
        ("forgets", True, "malformed"),
    ],
)
def test_a_server_that_fails_is_an_error_with_its_reason(
    server: Server, connect: Any, prompts: Any, fails: str, streams: bool, why: str
) -> None:
    engine = connect()
    server.behaviour = Behaviour(fails=fails)
    sampling = Sampling(max_new_tokens=LENGTH)
    with pytest.raises(UpstreamError) as caught:
        if streams:
            list(engine.stream(prompts[0], sampling).start(range(1)))
        else:
            list(engine.generate(prompts[:1], sampling))
    assert caught.value.why == why


def test_a_silent_server_is_given_up(server: Server, connect: Any, prompts: Any) -> None:
    engine = connect(timeout_s=3.0)
    server.behaviour.step_s = 20
    with pytest.raises(UpstreamError, match="no answer from"):
        engine.confidences(prompts[:1], [[5]])


@pytest.mark.parametrize(
    "behaviour, words",
    [
        (Behaviour(processed=True), "at one temperature"),
        (Behaviour(raw_logits=True), "no log-probabilities"),
    ],
)
def test_a_server_whose_numbers_would_be_wrong_is_refused(
    server: Server, connect: Any, behaviour: Behaviour, words: str
) -> None:
    server.behaviour = behaviour
    with pytest.raises(ModelError, match=words):
        connect()


def test_what_cannot_be_connected_to_says_why(
    server: Server, connect: Any, folder: Path, tmp_path: Path, tokenizer: Any
) -> None:
    with pytest.raises(ModelError, match=f"does not have 'other'.*{MODEL}"):
        connect(model="other")
    with pytest.raises(ConfigError, match="is not a server address"):
        OpenAIEngine("nowhere", folder)
    with pytest.raises(UpstreamError, match=r"127\.0\.0\.1:9: no answer"):
        OpenAIEngine("http://127.0.0.1:9", folder, retries=0)
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        OpenAIEngine(server.url, tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="no <CNF>"):
        OpenAIEngine(server.url, tmp_path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_in_flight": 0}, "max_in_flight is 0; use 1 or more"),
        ({"max_in_flight": "two"}, "max_in_flight is 'two'; use 1 or more"),
        ({"retries": -1}, "retries is -1; use 0 or more"),
        ({"timeout_s": 0}, "timeout_s is 0; use more than 0"),
        ({"tensor_parallel_size": 2}, "has no tensor_parallel_size; it has url, model, api_key"),
        ({"api_key": 12345}, "the API key is no text; put it into GRACE_UPSTREAM_KEY"),
        ({"url": 8000}, "8000 is not a server address"),
    ],
)
def test_options_that_a_client_cannot_have_are_refused(
    options: dict[str, Any], words: str, server: Server, folder: Path
) -> None:
    with pytest.raises(ConfigError, match=words):
        load_engine("openai", folder, **{"url": server.url, **options})


def test_responses_are_rated_token_by_token_where_the_model_is_a_lora(
    local: TransformersEngine, server: Server, connect: Any, prompts: Any
) -> None:
    server.behaviour.parent = "base"
    engine = connect(model=MODEL)
    assert engine.served.lora
    assert engine.served.context == server.behaviour.context
    responses = [[40, 41, 42], [], [50]]
    expected = local.confidences(prompts[:3], responses)
    assert engine.confidences(prompts[:3], responses) == pytest.approx(expected, abs=1e-5)
    for (logprobs, end), (own, own_end) in zip(
        engine.logprobs(prompts[:3], responses), local.logprobs(prompts[:3], responses), strict=True
    ):
        assert logprobs == pytest.approx(own, abs=1e-4)
        assert end == pytest.approx(own_end, abs=1e-4)


def test_the_engine_does_not_import_torch() -> None:
    code = "import sys, grace.engines.openai; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
