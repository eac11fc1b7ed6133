"""`grace proxy`: the API of `grace serve` in front of a server that speaks vLLM's dialect."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from live_server import NAME, Live, running, until

from fake_upstream import Behaviour, Server
from grace.chat import encode_chat
from grace.model import Model
from grace.model.loading import connect

QUESTIONS = [
    f"What is {number} and {number * 7}?" for number in range(8)
]  # the first has a blank answer
USER = [{"role": "user", "content": QUESTIONS[0]}]
SAYING = QUESTIONS[6]  # whose answer, and samples, have several tokens


@pytest.fixture(autouse=True)
def behaviour(upstream: Server) -> Iterator[Behaviour]:
    upstream.behaviour = Behaviour()
    yield upstream.behaviour
    upstream.behaviour = Behaviour()


def chat(live: Live, question: str = QUESTIONS[0], **options: Any) -> Any:
    messages = live.model.messages(question)
    options = {"temperature": 0, **options}
    return live.client().chat.completions.create(model=NAME, messages=messages, **options)


def ask(live: Live, grace: Any, **options: Any) -> Any:
    extra = {"grace": grace}
    client = live.client()
    return client.chat.completions.create(model=NAME, messages=USER, extra_body=extra, **options)


def test_an_upstream_that_ends_at_once_gives_no_confidence(
    upstream: Server, proxy: Live, behaviour: Behaviour, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, eos = upstream.logits, upstream.eos[0]

    def logits(ids: list[int]) -> torch.Tensor:
        found = real(ids).clone()
        found[-1, eos] = 1e3
        return found

    monkeypatch.setattr(upstream, "logits", logits)
    (choice,) = chat(proxy).choices
    assert (choice.message.content, choice.finish_reason) == ("", "stop")
    assert (choice.confidence, choice.no_confidence) == (None, "the answer is empty")
    voted = ask(proxy, {"budget": 3})
    assert (voted.grace["answer"], voted.choices[0].confidence) == (None, None)


def test_a_vote_that_is_sure_stops_the_samples_in_flight(proxy: Live, behaviour: Behaviour) -> None:
    behaviour.step_s = 0.2
    answer = ask(proxy, {"strategy": "es", "budget": 32, "parallel": 16, "threshold": 0}, seed=1)
    assert answer.grace["samples"] < answer.grace["issued"] == 16
    assert len(behaviour.requests) == 16
    until(lambda: behaviour.left > 0)


@pytest.mark.parametrize("token", ["<CNF>", "<|im_end|>", "<|im_start|>assistant\n"])
def test_no_text_turns_into_a_special_token_upstream(
    proxy: Live, behaviour: Behaviour, token: str
) -> None:
    tokenizer = proxy.model.engine.tokenizer
    special = {tokenizer.get_vocab()[name] for name in ("<CNF>", "<|im_end|>", "<s>")}
    proxy.client().completions.create(model=NAME, prompt=f"a {token}", max_tokens=1)
    assert not special & set(behaviour.requests[-1]["prompt"])
    question = f"Is {token} text?"
    chat(proxy, question, max_tokens=1)
    prompt = behaviour.requests[-1]["prompt"]
    assert prompt == encode_chat(tokenizer, proxy.model.messages(question))
    plain = encode_chat(tokenizer, proxy.model.messages("Is it text?"))
    assert [i for i in prompt if i in special] == [i for i in plain if i in special]


def test_several_prompts_and_samples_with_a_seed_repeat(proxy: Live) -> None:
    def texts(**options: Any) -> list[str]:
        answer = proxy.client().completions.create(
            model=NAME, prompt=["one", "two"], n=3, temperature=1, max_tokens=12, **options
        )
        assert [choice.index for choice in answer.choices] == list(range(6))
        return [choice.text for choice in answer.choices]

    assert texts(seed=1) == texts(seed=1)
    assert texts(seed=1) != texts(seed=2)
    assert len(set(texts(seed=1))) > 2


def test_logprobs_carry_cnf_and_alternatives_are_refused(proxy: Live) -> None:
    for question in QUESTIONS:
        (choice,) = chat(proxy, question, logprobs=True).choices
        steps = choice.logprobs.content
        if choice.finish_reason == "stop" and choice.confidence is None:  # blank
            assert steps.pop().top_logprobs == []
        assert all(step.top_logprobs[-1].token == "<CNF>" for step in steps)
        if choice.confidence is not None:
            last = steps[-1].top_logprobs[-1]
            assert math.exp(last.logprob) == pytest.approx(choice.confidence)
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError, match="either the most probable tokens or"):
            chat(proxy, logprobs=True, top_logprobs=3, stream=stream)
    with pytest.raises(openai.BadRequestError) as refused:
        proxy.client().completions.create(model=NAME, prompt="a", logprobs=2)
    assert refused.value.param == "logprobs"


FAULTS = [
    ("cut", "upstream_broken", 502),
    ("ends", "upstream_broken", 502),
    ("malformed", "upstream_malformed", 502),
    ("error", "upstream_failed", 502),
    ("500", "upstream_failed", 502),
]


@pytest.mark.parametrize("fails, code, status", FAULTS)
def test_an_upstream_that_fails_is_a_documented_error(
    proxy: Live, behaviour: Behaviour, fails: str, code: str, status: int
) -> None:
    behaviour.fails = fails
    body: dict[str, Any] = {"model": NAME, "messages": USER, "temperature": 0}
    body["grace"] = {"prompt": "raw"}  # whose answer begins with a whole character
    got, answer = proxy.post("/v1/chat/completions", body)
    assert (got, answer["error"]["code"]) == (status, code)
    assert "127.0.0.1" not in answer["error"]["message"]
    events = proxy.events("/v1/chat/completions", body)
    assert events[-1]["error"]["code"] == code
    if fails != "500":  # which comes before the stream has begun
        assert events[0]["choices"][0]["delta"]["role"] == "assistant"
    body["messages"] = [{"role": "user", "content": SAYING}]
    vote = body | {"grace": {"budget": 2, "strategy": "sc"}}
    assert proxy.post("/v1/chat/completions", vote)[1]["error"]["code"] == code


def test_a_busy_upstream_is_a_503_that_says_when_to_come_back(
    proxy: Live, behaviour: Behaviour
) -> None:
    behaviour.busy, behaviour.retry_after = 10, "1"
    body = {"model": NAME, "prompt": "a", "max_tokens": 2}
    answer = proxy.send("/v1/completions", body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "upstream_busy")
    assert answer.headers["retry-after"] == "1"
    behaviour.busy = 1
    assert proxy.post("/v1/completions", body)[0] == 200


def test_a_busy_upstream_that_asks_for_more_time_than_is_left_is_a_503_at_once(
    proxy: Live, behaviour: Behaviour
) -> None:
    behaviour.busy, behaviour.retry_after = 10, "600"  # the proxy's timeout is 300
    for more in ({}, {"stream": True}):
        body = {"model": NAME, "prompt": "a", "max_tokens": 2, **more}
        answer = proxy.send("/v1/completions", body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "upstream_busy")
        assert answer.headers["retry-after"] == "600"
    assert len(behaviour.requests) == 2


def test_no_upstream_asks_a_client_to_wait_forever(proxy: Live, behaviour: Behaviour) -> None:
    behaviour.busy, behaviour.retry_after = 10, "9" * 400
    answer = proxy.send("/v1/completions", {"model": NAME, "prompt": "a"})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "3600")


def test_an_upstream_that_restarts_with_other_weights_is_noticed(
    upstream: Server, proxy: Live, behaviour: Behaviour, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"model": NAME, "prompt": "a", "max_tokens": 2}
    score = {"model": NAME, "input": [{"question": "q", "response": "x"}]}
    asked = [("/v1/completions", body), ("/v1/score", score)]
    monkeypatch.setattr("grace.engines.http.remote.CHECK_S", 0.0)
    assert [proxy.post(*one)[0] for one in asked] == [200, 200]
    real = upstream.logits
    with monkeypatch.context() as restarted:
        restarted.setattr(upstream, "logits", lambda ids: real(ids).flip(-1))
        for one in asked:
            status, answer = proxy.post(*one)
            assert (status, answer["error"]["code"]) == (501, "upstream_unsupported")
            assert "has another model than when it was first asked" in answer["error"]["message"]
    assert [proxy.post(*one)[0] for one in asked] == [200, 200]  # the right one is back
    monkeypatch.setattr("grace.engines.http.remote.CHECK_S", 1e9)
    before = len(behaviour.requests)
    assert proxy.post("/v1/completions", body)[0] == 200
    assert len(behaviour.requests) == before + 1  # it is not asked again for every request


def test_what_the_upstream_refuses_is_told_with_its_words(
    proxy: Live, relayed: Model, behaviour: Behaviour
) -> None:
    long = {"model": NAME, "messages": [{"role": "user", "content": "word " * 300}]}
    status, answer = proxy.post("/v1/chat/completions", long)
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
    behaviour.context = 30  # less than it said
    status, answer = proxy.post("/v1/completions", {"model": NAME, "prompt": "a", "max_tokens": 50})
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
    assert "This model's maximum context length is 30" in answer["error"]["message"]


def test_a_slow_upstream_is_a_504_and_is_hung_up_on(
    upstream: Server, relayed: Model, finished: Path
) -> None:
    upstream.behaviour.step_s = 0.2
    body = {"model": NAME, "prompt": "a", "max_tokens": 200, "temperature": 2, "seed": 1}
    with running(relayed, finished / "run", timeout_s=0.5) as hasty:
        for path, more in (
            ("/v1/completions", {"n": 4}),
            ("/v1/score", {"model": NAME, "input": [{"prompt": "a", "response": "b"}] * 4}),
        ):
            before = upstream.behaviour.left
            asked = more if "input" in more else body | more
            if "input" in more:
                upstream.behaviour.step_s = 2
            status, answer = hasty.post(path, asked)
            assert (status, answer["error"]["code"]) == (504, "timeout")
            until(lambda before=before: upstream.behaviour.left > before)  # type: ignore[misc]


def test_a_client_that_leaves_hangs_up_on_the_upstream(proxy: Live, behaviour: Behaviour) -> None:
    behaviour.step_s = 0.1
    options = {"temperature": 2, "max_tokens": 200, "n": 4, "seed": 1}
    stream = chat(proxy, stream=True, **options)
    next(iter(stream))
    stream.close()
    until(lambda: behaviour.left > 0)
    before = behaviour.left
    with pytest.raises(openai.APITimeoutError):
        messages = proxy.model.messages(QUESTIONS[0])
        proxy.client(timeout=0.5).chat.completions.create(model=NAME, messages=messages, **options)
    until(lambda: behaviour.left > before)
    before = behaviour.left
    with pytest.raises(openai.APITimeoutError):
        client = proxy.client(timeout=0.5)
        vote = {"grace": {"budget": 8, "parallel": 4, "strategy": "sc"}}
        client.chat.completions.create(model=NAME, messages=USER, extra_body=vote, seed=2)
    until(lambda: behaviour.left > before)
    behaviour.step_s = 0
    assert chat(proxy, max_tokens=2).choices


def test_a_body_that_is_too_large_is_a_413_here_and_where_the_upstream_says_so(
    proxy: Live, behaviour: Behaviour
) -> None:
    body = {"model": NAME, "prompt": "a" * 2**20}
    status, answer = proxy.post("/v1/completions", body)
    assert (status, answer["error"]["code"]) == (413, "too_large")
    behaviour.fails = "413"
    status, answer = proxy.post("/v1/completions", body | {"prompt": "a"})
    assert (status, answer["error"]["code"]) == (413, "upstream_too_large")
    assert "Request Entity Too Large" in answer["error"]["message"]


def test_a_full_queue_says_when_to_come_back(
    upstream: Server, relayed: Model, finished: Path
) -> None:
    gate = upstream.behaviour.gate = threading.Event()
    with running(relayed, finished / "run", max_waiting=1, max_running=1) as small:
        answers = []

        def one(number: int) -> None:
            body = {"model": NAME, "prompt": "a", "max_tokens": 20, "seed": number}
            answers.append(small.send("/v1/completions", body))
            if len(answers) == 4:  # one runs, one waits
                gate.set()

        threads = [threading.Thread(target=one, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(one.status_code for one in answers) == [200, 200, 429, 429, 429, 429]
    busy = next(one for one in answers if one.status_code == 429)
    assert (busy.json()["error"]["code"], busy.headers["retry-after"]) == ("queue_full", "1")


def test_a_proxy_is_ready_while_its_upstream_answers(
    upstream: Server, proxy: Live, behaviour: Behaviour, finished: Path
) -> None:
    def ready(live: Live) -> tuple[int, Any]:
        answer = live.send("/ready")
        return answer.status_code, answer.json()

    assert ready(proxy)[0] == 200
    behaviour.fails = "down"
    status, answer = ready(proxy)
    assert (status, answer["error"]["code"]) == (503, "not_ready")
    assert answer["error"]["message"] == "not ready: the upstream answers 503"
    behaviour.fails = ""
    model: Any = connect(upstream.url, finished / "run")
    model.engine._upstream.url = "http://127.0.0.1:9"
    with running(model, finished / "run") as lonely:
        assert ready(lonely)[1]["error"]["message"] == "not ready: the upstream does not answer"
        assert lonely.send("/health").status_code == 200
    model.engine.close()
