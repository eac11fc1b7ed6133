"""`grace serve` as the official client sees it."""

from __future__ import annotations

import copy
import dataclasses
import math
import sys
import threading
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest
from live_server import NAME, Live, running, slowed

from grace.chat import encode_chat, encode_text
from grace.config import DataSettings
from grace.engines import Sampling
from grace.model import Model
from grace.records import EMPTY, Threshold
from grace.tasks import load_task
from instead import Instead

QUESTION = "What is 7 and 49?"


def chat(live: Live, question: str = QUESTION, **options: Any) -> Any:
    messages = live.model.messages(question)
    options = {"temperature": 0, **options}
    return live.client().chat.completions.create(model=NAME, messages=messages, **options)


def an_ending_question(live: Live) -> str:
    for number in range(40):
        question = f"What is {number} and {number * 7}?"
        reply = live.model.ask(question)
        if reply.confidence is not None and reply.tokens > 2:
            return question
    raise AssertionError("the tiny model ends no answer")


def test_a_choice_carries_the_confidence_that_ask_gives(served: Live) -> None:
    for number in range(6):
        question = f"What is {number} and {number * 7}?"
        (choice,) = chat(served, question).choices
        reply = served.model.ask(question)
        assert choice.message.content == reply.text
        assert choice.finish_reason == reply.finish_reason
        assert choice.confidence == pytest.approx(reply.confidence, abs=1e-5)


def test_grace_asks_with_the_prompt_of_the_run(served: Live) -> None:
    reply = served.model.ask(QUESTION)
    answer = served.client().chat.completions.create(
        model=NAME,
        messages=[{"role": "user", "content": QUESTION}],
        extra_body={"grace": {"budget": 1, "threshold": 0.99}},
    )
    assert answer.choices[0].message.content == reply.text
    assert answer.choices[0].confidence == pytest.approx(reply.confidence, abs=1e-6)
    assert answer.grace["answer"] == reply.answer
    assert answer.grace["threshold"] == 0.99
    assert answer.grace["abstains"] is True


def test_one_user_turn_is_asked_with_the_prompt_of_the_run(live: Live) -> None:
    plain: dict[str, Any] = {"model": NAME, "temperature": 0}
    plain["messages"] = [{"role": "user", "content": QUESTION}]
    reply = live.model.ask(QUESTION)
    create = live.client().chat.completions.create
    (choice,) = create(**plain, logprobs=True).choices
    assert choice.message.content == reply.text
    assert choice.confidence == pytest.approx(reply.confidence, abs=1e-6)
    assert choice.calibrated is True
    *_, last = [chunk.choices[0] for chunk in create(**plain, stream=True)]
    assert (last.confidence, last.calibrated) == (choice.confidence, True)
    raw = create(**plain, max_tokens=4, extra_body={"grace": {"prompt": "raw"}})
    assert raw.choices[0].calibrated is False
    tokens = len(encode_chat(live.model.engine.tokenizer, plain["messages"]))
    assert raw.usage.prompt_tokens == tokens


def test_a_prompt_that_the_model_was_not_trained_on_is_said_so(live: Live) -> None:
    trained = live.model.messages(QUESTION)
    user, answer = {"role": "user", "content": QUESTION}, {"role": "assistant", "content": "49"}
    system = {"role": "system", "content": "Be brief."}
    for messages, calibrated in (
        (trained, True),
        ([system, user], False),
        ([user, answer, user], False),
        ([user, answer], False),
    ):
        body = {"model": NAME, "messages": messages, "max_tokens": 2}
        _, answered = live.post("/v1/chat/completions", body)
        assert answered["choices"][0]["calibrated"] is calibrated
        scored = {"model": NAME, "input": [{"messages": messages, "response": "49"}]}
        _, answered = live.post("/v1/score", scored)
        assert answered["data"][0]["calibrated"] is calibrated
    scored = {"model": NAME, "input": [{"question": QUESTION, "response": "49"}]}
    assert live.post("/v1/score", scored)[1]["data"][0]["calibrated"] is True
    told = live.client().completions.create(model=NAME, prompt="a", max_tokens=2)
    assert told.choices[0].calibrated is False


@pytest.mark.parametrize("temperature", [5e-324, 1e-40, 1e-6])
def test_a_temperature_too_small_to_divide_by_is_greedy(live: Live, temperature: float) -> None:
    (choice,) = chat(live, temperature=temperature).choices
    assert choice.message.content == chat(live).choices[0].message.content


def test_no_answer_is_longer_than_the_server_allows(live: Live, finished: Path) -> None:
    body = {"model": NAME, "messages": [{"role": "user", "content": QUESTION}], "logprobs": True}
    with running(live.model, finished / "run", max_tokens=2) as server:
        assert server.client().models.retrieve(NAME).grace["max_tokens"] == 2
        for options in ({}, {"grace": {"budget": 1}}):
            _, answer = server.post("/v1/chat/completions", {**body, **options})
            assert len(answer["choices"][0]["logprobs"]["content"]) <= 2
        del body["logprobs"]
        _, voted = server.post("/v1/chat/completions", {**body, "grace": {"budget": 3}})
        assert all(vote["tokens"] <= 2 for vote in voted["grace"]["votes"])


def test_usage_counts_the_end_token_and_is_everywhere(live: Live) -> None:
    question = an_ending_question(live)
    reply, tokenizer = live.model.ask(question), live.model.engine.tokenizer
    prompt = len(encode_chat(tokenizer, live.model.messages(question)))
    usage = chat(live, question).usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (prompt, reply.tokens + 1)
    assert usage.total_tokens == prompt + reply.tokens + 1
    assert chat(live, question, max_tokens=2).usage.completion_tokens == 2  # cut: no end
    scored = {"model": NAME, "input": [{"question": question, "response": "49"}]}
    _, answer = live.post("/v1/score", scored)
    tokens = prompt + len(encode_text(tokenizer, "49"))
    expected = {"prompt_tokens": tokens, "completion_tokens": 0, "total_tokens": tokens}
    assert answer["usage"] == expected
    vote = {"grace": {"budget": 3, "strategy": "sc"}, "seed": 1}
    asked = [{"role": "user", "content": question}]
    _, answer = live.post(
        "/v1/chat/completions", {"model": NAME, "messages": asked, "temperature": 0, **vote}
    )
    assert answer["usage"]["completion_tokens"] == 3 * (reply.tokens + 1)
    options = {"include_usage": True}
    *chunks, last = chat(live, question, stream=True, stream_options=options)
    assert last.usage.completion_tokens == reply.tokens + 1
    assert all("usage" in chunk.model_fields_set and chunk.usage is None for chunk in chunks)


def test_logprobs_carry_cnf_at_every_step_and_the_confidence_at_the_last(live: Live) -> None:
    question = an_ending_question(live)
    (choice,) = chat(live, question, logprobs=True, top_logprobs=3).choices
    reply = live.model.ask(question)
    steps = choice.logprobs.content
    assert len(steps) == reply.tokens + 1  # the last is the end of the response
    for step, c in zip(steps, reply.trace, strict=True):
        *alternatives, cnf = step.top_logprobs
        assert cnf.token == "<CNF>"
        assert math.exp(cnf.logprob) == pytest.approx(c, abs=1e-6)
        assert len(alternatives) == 3
        assert step.logprob == pytest.approx(alternatives[0].logprob, abs=1e-4)  # greedy
    assert math.exp(steps[-1].top_logprobs[-1].logprob) == pytest.approx(choice.confidence)
    assert "".join(step.token for step in steps[:-1]).lstrip() == choice.message.content


@pytest.mark.parametrize("stop", [None, "middle"])
def test_a_client_that_drops_chunks_without_text_keeps_the_confidence(
    live: Live, stop: str | None
) -> None:
    question = an_ending_question(live)
    (whole,) = chat(live, question).choices
    text = whole.message.content
    options = {"stop": text[len(text) // 2 :][:2]} if stop else {}
    (whole,) = chat(live, question, **options).choices
    streamed = chat(live, question, stream=True, logprobs=True, top_logprobs=2, **options)
    chunks = [chunk.choices[0] for chunk in streamed]
    kept = [c for c in chunks if c.delta.content]
    assert "".join(c.delta.content for c in kept) == whole.message.content
    assert [c.confidence for c in chunks if c.finish_reason] == [
        pytest.approx(whole.confidence, abs=1e-6)
    ]
    last = kept[-1].logprobs.content[-1].top_logprobs[-1]
    assert (last.token, math.exp(last.logprob)) == ("<CNF>", pytest.approx(whole.confidence))
    steps = [step for c in chunks if c.logprobs for step in c.logprobs.content]
    assert len(steps) == len(
        chat(live, question, logprobs=True, **options).choices[0].logprobs.content
    )


def test_a_stream_says_the_same_as_the_whole(served: Live) -> None:
    question = an_ending_question(served)
    (whole,) = chat(served, question).choices
    usage = {"include_usage": True}
    chunks = list(chat(served, question, stream=True, stream_options=usage))
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert choices[0].delta.role == "assistant"
    assert "".join(c.delta.content or "" for c in choices) == whole.message.content
    assert [c.finish_reason for c in choices[:-1]] == [None] * (len(choices) - 1)
    assert choices[-1].finish_reason == "stop"
    assert choices[-1].confidence == pytest.approx(whole.confidence, abs=1e-6)
    assert chunks[-1].usage.completion_tokens == served.model.ask(question).tokens + 1


def test_n_samples_are_those_of_the_engine(live: Live) -> None:
    answer = chat(live, n=3, temperature=0.8, seed=5, max_tokens=12, top_p=0.9)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    prompt = encode_chat(live.model.engine.tokenizer, live.model.messages(QUESTION))
    sampling = Sampling(3, 0.8, 0.9, 12, seed=5)
    ((_, expected),) = live.model.engine.generate([prompt], sampling)
    for choice, generation in zip(answer.choices, expected, strict=True):
        assert choice.message.content == generation.text.lstrip()
        assert choice.confidence == pytest.approx(generation.confidence, abs=1e-6)


def test_a_seed_repeats_and_none_does_not(live: Live) -> None:
    def texts(**options: Any) -> list[str]:
        answer = chat(live, n=4, temperature=1, max_tokens=16, **options)
        return [choice.message.content for choice in answer.choices]

    assert texts(seed=1) == texts(seed=1)
    assert texts(seed=1) != texts(seed=2)
    assert texts() != texts()


def test_a_stop_string_ends_the_text_and_its_confidence_is_that_of_what_is_left(
    served: Live,
) -> None:
    (whole,) = chat(served, max_tokens=24).choices
    text = whole.message.content
    stop = text[len(text) // 2 :][:2]
    (cut,) = chat(served, max_tokens=24, stop=["never there", stop], logprobs=True).choices
    left = text[: text.index(stop)]
    assert cut.message.content == left
    assert cut.finish_reason == "stop"
    (expected,) = served.model.score([served.model.messages(QUESTION)], [left])
    assert cut.confidence == pytest.approx(expected, abs=1e-6)
    last = cut.logprobs.content[-1].top_logprobs[-1]
    assert (last.token, math.exp(last.logprob)) == ("<CNF>", pytest.approx(expected, abs=1e-6))
    streamed = list(chat(served, max_tokens=24, stop=stop, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed) == left


def test_an_empty_answer_has_no_confidence_and_says_why(live: Live) -> None:
    (whole,) = chat(live, max_tokens=24).choices
    everything = whole.message.content[0]
    for stream in (False, True):
        answer = chat(live, max_tokens=24, stop=everything, logprobs=True, stream=stream)
        last = list(answer)[-1].choices[0] if stream else answer.choices[0]
        assert (last.finish_reason, last.confidence) == ("stop", None)
        assert last.no_confidence == "the answer is empty"
    items = [{"question": QUESTION, "response": text} for text in ("", " \n", "no")]
    _, scores = live.post("/v1/score", {"model": NAME, "input": items})
    assert [one["confidence"] is None for one in scores["data"]] == [True, True, False]
    assert [one.get("no_confidence") for one in scores["data"]] == [EMPTY, EMPTY, None]
    grace = {"threshold": 0.0, "budget": 1}
    body = {"model": NAME, "messages": [{"role": "user", "content": QUESTION}], "grace": grace}
    _, answer = live.post("/v1/chat/completions", body | {"stop": everything, "max_tokens": 24})
    assert answer["grace"]["abstains"], answer


def test_an_answer_cut_at_its_longest_has_no_confidence(live: Live) -> None:
    question = an_ending_question(live)
    for size in range(1, live.model.ask(question).tokens + 1):
        for stream in (False, True):
            answer = chat(live, question, max_tokens=size, logprobs=True, stream=stream)
            choices = [one.choices[0] for one in (answer if stream else [answer])]
            assert (choices[-1].finish_reason, choices[-1].confidence) == ("length", None)
            steps = [step for one in choices if one.logprobs for step in one.logprobs.content]
            assert [len(step.top_logprobs) for step in steps] == [1] * (size - 1) + [0]
    body = {"model": NAME, "messages": [{"role": "user", "content": question}], "max_tokens": 1}
    body["seed"] = 0  # with another one a sample may end at once
    for budget in (1, 2):
        _, answer = live.post("/v1/chat/completions", {**body, "grace": {"budget": budget}})
        (choice,) = answer["choices"]
        assert (choice["finish_reason"], choice["confidence"]) == ("length", None)


ONCE = {"model": NAME, "messages": [{"role": "user", "content": QUESTION}], "grace": {"budget": 1}}


def with_promise(live: Live) -> Model:
    """The model with a guarantee for all of its greedy answers."""
    model = copy.copy(live.model)
    model.promise = Threshold("answer", 1, 0.0, 0.9, 0.05, 0.0, 50, 0.9, "PROMISE")
    return model


@pytest.mark.parametrize(
    ("options", "promise"),
    [
        ({}, "PROMISE"),
        ({"stop": ["a"]}, ""),
        ({"temperature": 1e-6}, "PROMISE"),  # greedy, too
        ({"temperature": 0.1}, ""),
    ],
)
def test_a_guarantee_covers_the_answers_that_it_was_chosen_for(
    live: Live, finished: Path, options: dict[str, Any], promise: str
) -> None:
    with running(with_promise(live), finished / "run") as server:
        _, answer = server.post("/v1/chat/completions", ONCE | options)
    tau = 0.0 if promise else None
    assert (answer["grace"]["promise"], answer["grace"]["threshold"]) == (promise, tau)


def test_a_guarantee_is_listed_where_answers_may_be_as_long_as_those_it_was_chosen_for(
    live: Live, finished: Path
) -> None:
    model, longest = with_promise(live), live.model.sample.longest
    for most, promise in ((longest, "PROMISE"), (longest - 1, "")):
        with running(model, finished / "run", max_tokens=most) as server:
            listed = server.client().models.retrieve(NAME).grace["threshold"] or {}
            _, answer = server.post("/v1/chat/completions", ONCE)
            assert listed.get("promise", "") == answer["grace"]["promise"] == promise


def test_only_a_question_with_options_may_be_answered_at_length(live: Live, finished: Path) -> None:
    sample = dataclasses.replace(live.model.sample, open_tokens=1)
    data = dataclasses.replace(live.model.data, prompt="text")  # short enough for the model
    model = dataclasses.replace(live.model, sample=sample, data=data)
    spent = []
    with running(model, finished / "run") as server:
        for options in ([], ["x", "y"]):
            asked = ONCE | {"grace": {"budget": 1, "choices": options}, "temperature": 2.0}
            _, answer = server.post("/v1/chat/completions", asked | {"seed": 1})
            spent.append(answer["usage"]["completion_tokens"])
    assert spent[0] == 1 < spent[1] <= sample.longest


def test_completions_continue_text(live: Live) -> None:
    answer = live.client().completions.create(
        model=NAME, prompt=["Who wrote", "What is"], temperature=0, logprobs=1, max_tokens=6, n=2
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.choices[0].text == answer.choices[1].text
    for choice in answer.choices:
        assert "<CNF>" in choice.logprobs.top_logprobs[0]
        for token, at in zip(choice.logprobs.tokens, choice.logprobs.text_offset, strict=True):
            whole = "\ufffd" not in token and at < len(choice.text)
            assert not whole or choice.text.startswith(token, at)


def test_a_vote_is_that_of_the_model_with_every_sample(served: Live) -> None:
    def ask(parallel: int = 2, **options: Any) -> Any:
        return served.client().chat.completions.create(
            model=NAME,
            messages=[{"role": "user", "content": QUESTION}],
            seed=4,
            extra_body={"grace": {"strategy": "grace-sc", "budget": 4, "parallel": parallel}},
            **options,
        )

    expected = served.model.vote(QUESTION, strategy="grace-sc", budget=4, seed=4)
    answer = ask()
    assert answer.grace["answer"] == expected.answer
    assert answer.choices[0].confidence == pytest.approx(expected.confidence, abs=1e-6)
    assert [vote["text"] for vote in answer.grace["votes"]] == [v.text for v in expected.votes]
    assert answer.grace["seed"] == 4
    assert ask(parallel=65).grace["issued"] == 4
    chunks = list(ask(stream=True))
    seen = [c.grace["vote"]["text"] for c in chunks if c.model_extra.get("grace", {}).get("vote")]
    assert seen == [vote.text for vote in expected.votes]
    assert chunks[-1].grace["samples"] == expected.samples
    assert chunks[0].choices[0].delta.role == "assistant"  # as every stream begins
    assert [c.choices[0].delta.role for c in chunks if c.choices][1:] == [None, None]


@pytest.mark.parametrize("budget", [1, 4])
def test_answers_are_read_with_the_options_of_the_question(
    budget: int, live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered = Instead(live.model.task, answer=lambda text, choices=(): f"one of {len(choices)}")
    monkeypatch.setattr(live.model, "task", offered)
    monkeypatch.setattr(live.model, "data", DataSettings(prompt="text"))
    user = [{"role": "user", "content": "What is 32 and 224?"}]
    options = {"budget": budget, "choices": ["x", "y", "z"]}
    body = {"model": NAME, "messages": user, "max_tokens": 4, "grace": options}
    _, answer = live.post("/v1/chat/completions", body)
    assert answer["grace"]["answer"] == "one of 3"


def test_score_rates_what_one_already_has(served: Live) -> None:
    chat_messages = served.model.messages(QUESTION)
    items = [
        {"question": QUESTION, "response": "49"},
        {"messages": chat_messages, "response": "49"},
        {"prompt": "What?", "response": "this <CNF> is text<|im_end|>"},
    ]
    status, body = served.post("/v1/score", {"model": NAME, "input": items})
    own = [{"role": "user", "content": "What?"}]
    chats = [chat_messages, chat_messages, own]
    expected = served.model.score(chats, [item["response"] for item in items])
    assert status == 200
    assert [row["confidence"] for row in body["data"]] == pytest.approx(expected, abs=1e-6)


def test_of_a_multiple_choice_model_a_question_with_its_choices_is_calibrated(
    tiny_model: Model, finished: Path
) -> None:
    task, data = load_task("jsonl", "choice"), DataSettings(task="jsonl", system="Choose.")
    model = Model(tiny_model.engine, task, data, tiny_model.sample)
    with running(model, finished / "run") as server:
        (card,) = server.client().models.list().data
        assert card.grace["kind"] == "choice"  # the page then has a field for the options
        item = {"question": "Which?", "choices": ["4", "7"], "response": "B"}
        _, scored = server.post("/v1/score", {"model": NAME, "input": [item]})
        assert scored["data"][0]["calibrated"] is True
        turn = [{"role": "user", "content": "Which?"}]
        _, bare = server.post("/v1/chat/completions", {"model": NAME, "messages": turn})
        assert bare["choices"][0]["calibrated"] is False


@pytest.mark.parametrize("token", ["<CNF>", "<|im_end|>", "<|im_start|>assistant\n"])
def test_special_tokens_in_a_prompt_are_characters(live: Live, token: str) -> None:
    tokenizer = live.model.engine.tokenizer
    plain = len(encode_text(tokenizer, token))
    for prompt in (token, f"a {token}"):
        answer = live.client().completions.create(model=NAME, prompt=prompt, max_tokens=1)
        assert answer.usage.prompt_tokens >= plain > 1
        said = chat(live, prompt, max_tokens=1).usage.prompt_tokens
        assert said == len(encode_chat(tokenizer, live.model.messages(prompt)))


@pytest.mark.parametrize(
    "options, param",
    [
        ({"n": 65}, "n"),
        ({"n": 0}, "n"),
        ({"temperature": 3}, "temperature"),
        ({"max_tokens": 5000}, "max_tokens"),
        ({"max_completion_tokens": 5000}, "max_completion_tokens"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"extra_body": {"top_k": 3}}, "top_k"),
        ({"frequency_penalty": 1}, "frequency_penalty"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"extra_body": {"grace": {"budget": 65}}}, "grace.budget"),
        ({"extra_body": {"grace": {"budget": 4}}, "n": 2}, "n"),
        ({"extra_body": {"grace": {"budget": 1, "prompt": "raw"}}}, "grace"),
        ({"extra_body": {"grace": {"strategy": "no_such_module:x"}}}, "grace.strategy"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(
    live: Live, options: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        live.client().chat.completions.create(
            model=NAME, messages=[{"role": "user", "content": "q"}], **options
        )
    assert str(refused.value.body["param"]).startswith(param)
    assert refused.value.body["message"]


def test_a_request_imports_nothing(
    live: Live, proxy: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "planted_here.py").write_text("raise SystemExit(1)\n")
    monkeypatch.chdir(tmp_path)
    user = [{"role": "user", "content": QUESTION}]
    for server in (live, proxy):
        for name in ("planted_here:x", "grace-planted_here:x", "venv.__main__:x", ":", "es:"):
            body = {"model": NAME, "messages": user, "grace": {"budget": 2, "strategy": name}}
            status, answer = server.post("/v1/chat/completions", body)
            assert (status, answer["error"]["param"]) == (400, "grace.strategy")
        for name in ("planted_here", "ess", "grace-ess,threshold=1"):
            body["grace"] = {"budget": 2, "strategy": name}
            status, answer = server.post("/v1/chat/completions", body)
            assert (status, answer["error"]["param"]) == (400, "grace.strategy")
            assert "module:" not in answer["error"]["message"]
    assert "planted_here" not in sys.modules


def test_bad_requests_get_openai_errors(live: Live) -> None:
    user = [{"role": "user", "content": "word " * 300}]
    for path, body, status, code in (
        ("/v1/chat/completions", {"model": "x", "messages": user}, 404, "model_not_found"),
        ("/v1/chat/completions", {"model": NAME, "messages": user}, 400, "context_length_exceeded"),
        ("/v1/chat/completions", {"model": NAME, "messages": []}, 400, None),
        ("/v1/chat/completions", b"{", 400, None),
        ("/v1/chat/completions", b"", 400, None),
        ("/v1/chat/completions", b'{"model": "\xff"}', 400, None),
        ("/v1/chat/completions", b"[" * 100_000, 400, None),
        ("/v1/completions", {"model": NAME, "prompt": "\ud800"}, 400, None),
        ("/v1/completions", {"model": NAME, "prompt": "a" * 2**20}, 413, "too_large"),
        ("/v1/score", {"model": NAME, "input": [{"response": "x"}]}, 400, None),
        ("/v1/nothing", {}, 404, None),
    ):
        got, answer = live.post(path, body)
        assert (got, answer["error"]["code"]) == (status, code), (body, answer)
        assert answer["error"]["message"] != "Field required"
        assert set(answer["error"]) == {"message", "type", "param", "code"}
    for body in (b'{"model": "\xff"}', b"[" * 100_000, b"9" * 5000):
        assert "JSON" in live.post("/v1/chat/completions", body)[1]["error"]["message"]
    assert "/openapi.json" in live.post("/chat/completions", {})[1]["error"]["message"]
    stream = {"model": NAME, "messages": user, "stream": True}
    assert live.post("/v1/chat/completions", stream)[0] == 400  # not a stream of one error
    wrong = {"model": NAME, "messages": user}
    assert live.post("/v1/chat/completions", wrong, **{"Content-Type": "text/plain"})[0] == 415


@pytest.mark.parametrize(
    "change, param",
    [
        ({"stop": [1]}, "stop[0]"),
        ({"stop": 5}, "stop"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
         "messages[0].content[0].type"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "function", "content": "4"}]}, "messages[0]"),
        ({"grace": {"threshold": 2}}, "grace.threshold"),
        ({"messages": None}, "messages"),
        ({"n": "many"}, "n"),
        ({"top_k": 3}, "top_k"),
    ],
)  # fmt: skip
def test_a_param_is_a_place_in_the_body(live: Live, change: Any, param: str) -> None:
    body = {"model": NAME, "messages": [{"role": "user", "content": "q"}], **change}
    status, answer = live.post("/v1/chat/completions", body)
    assert (status, answer["error"]["param"]) == (400, param)
    assert answer["error"]["message"].startswith(f"{param}: ")


def test_every_answer_has_a_request_id(live: Live) -> None:
    def id_of(path: str, given: str = "") -> str:
        head = {"x-request-id": given} if given else {}
        return str(live.send(path, **head).headers["x-request-id"])

    for path in ("/", "/health", "/nothing", "/v1/completions"):
        assert id_of(path) != id_of(path)
        assert id_of(path, "mine-1") == "mine-1"
    assert id_of("/health", "a b;c").startswith("req-")
    raw = live.client().completions.with_raw_response.create(model=NAME, prompt="a", max_tokens=1)
    assert raw.headers["x-request-id"].startswith("req-")


def test_an_error_outside_the_queue_is_a_500_that_the_log_names(
    live: Live, finished: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def answer(text: str, choices: Any = ()) -> str:
        raise LookupError("no answer at all")

    model = copy.copy(live.model)
    model.task = Instead(live.model.task, answer=answer)  # type: ignore[assignment]
    body = {"model": NAME, "messages": [{"role": "user", "content": QUESTION}]}
    body |= {"grace": {"budget": 1}, "max_tokens": 2}
    with running(model, finished / "run") as server:
        failed = server.send("/v1/chat/completions", body, **{"x-request-id": "mine-2"})
        assert (failed.status_code, failed.headers["x-request-id"]) == (500, "mine-2")
        assert failed.json()["error"]["code"] == "internal"
        counted = server.send("/metrics").text
        assert 'path="/v1/chat/completions",status="500"} 1.0' in counted
    assert "mine-2" in caplog.text and "no answer at all" in caplog.text


def test_answers_are_those_of_the_openapi_document(live: Live) -> None:
    document = live.send("/openapi.json").json()
    schemas = document["components"]["schemas"]

    def fits(value: Any, schema: Any) -> None:
        jsonschema.validate(value, {**schema, "components": document["components"]})

    user = [{"role": "user", "content": QUESTION}]
    chats: list[Any] = [
        {"messages": user, "logprobs": True, "top_logprobs": 2, "n": 2},
        {"messages": user, "grace": {"budget": 1}},
        {"messages": user, "grace": {"budget": 2}},
    ]
    texts: list[Any] = [{"prompt": ["a", "b"], "logprobs": 2}]
    scored = {"input": [{"question": QUESTION, "response": "49"}]}
    for path, bodies, chunk in (
        ("/v1/chat/completions", chats, "CompletionChunk"),
        ("/v1/completions", texts, "CompletionChunk"),
        ("/v1/score", [scored], ""),
    ):
        content = document["paths"][path]["post"]["responses"]["200"]["content"]
        for body in bodies:
            asked = {"model": NAME, **body}
            asked |= {"max_tokens": 9, "seed": 1} if chunk else {}
            status, found = live.post(path, asked)
            assert status == 200
            fits(found, content["application/json"]["schema"])
            asked["stream_options"] = {"include_usage": True}
            for event in live.events(path, asked) if chunk else ():
                fits(event, schemas[chunk])
        if chunk:
            named = content["text/event-stream"]["schema"]["contentSchema"]["$ref"]
            assert named.endswith(f"/{chunk}")
    for path in ("/health", "/ready", "/v1/models", f"/v1/models/{NAME}"):
        found = path.replace(NAME, "{model}")
        schema = document["paths"][found]["get"]["responses"]["200"]["content"]
        fits(live.send(path).json(), schema["application/json"]["schema"])
    assert "security" not in document["paths"]["/v1/score"]["post"]


def test_models_health_and_metrics(served: Live) -> None:
    assert served.client().models.retrieve(NAME).id == NAME
    (model,) = served.client().models.list().data
    assert model.grace["measured"]["reliability"]
    assert model.grace["measured"]["task"] == model.grace["task"]
    chat(served)
    counted = 'grace_requests_total{path="/v1/models/{model}",status="200"}'
    pages = ("/health", '"ok"'), ("/ready", '"ok"'), ("/metrics", counted)
    for path, wanted in pages:
        assert wanted in served.send(path).text


def test_an_api_key_guards_the_api_and_nothing_else(live: Live, finished: Any) -> None:
    with running(live.model, finished / "run", api_key="s3cret") as guarded:
        for key in ("wrong", "s3cre", "s3cret2"):
            with pytest.raises(openai.AuthenticationError):
                guarded.client(api_key=key).models.list()
        assert guarded.client(api_key="s3cret").models.list().data
        assert guarded.post("/v1/score", {})[0] == 401
        document = guarded.send("/openapi.json").json()
        assert document["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
        secured = {
            path
            for path, operations in document["paths"].items()
            if all("security" in operation for operation in operations.values())
        }
        assert secured == {path for path in document["paths"] if path.startswith("/v1/")}
        for path in ("/", "/health", "/metrics"):
            assert guarded.send(path).status_code == 200


def test_concurrent_requests_get_their_own_answers(served: Live) -> None:
    questions = [f"What is {number} and {number * 7}?" for number in range(12)]
    found: dict[str, Any] = {}

    def ask(question: str) -> None:
        found[question] = chat(served, question).choices[0]

    threads = [threading.Thread(target=ask, args=(question,)) for question in questions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for question in questions:
        reply = served.model.ask(question)
        assert found[question].message.content == reply.text
        assert found[question].confidence == pytest.approx(reply.confidence, abs=1e-6)


LONG = {"temperature": 1.5, "max_tokens": 200, "n": 32}
UNBROKEN = 60  # LONG takes 83 forward passes when nobody stops it


def test_a_client_that_leaves_frees_the_model(live: Live) -> None:
    asked = {"model": NAME, "messages": live.model.messages(QUESTION), **LONG}
    with slowed(live.model, 0.1) as slow:
        stream = live.client().chat.completions.create(stream=True, **asked)
        next(iter(stream))
        stream.close()
        left = slow.rest()
        assert left < UNBROKEN
        with pytest.raises(openai.APITimeoutError):
            live.client(timeout=0.3).chat.completions.create(**asked)
        assert slow.rest() - left < UNBROKEN
    assert chat(live, max_tokens=2).choices


def test_a_request_that_takes_too_long_ends(live: Live, finished: Any) -> None:
    body = {"model": NAME, "prompt": "a", **LONG}
    with running(live.model, finished / "run", timeout_s=0.2) as hasty, slowed(live.model) as slow:
        status, answer = hasty.post("/v1/completions", body)
        assert (status, answer["error"]["code"]) == (504, "timeout")
        assert slow.rest() < UNBROKEN
        *_, error = hasty.events("/v1/completions", body)  # it has begun: 200
    assert error["error"]["code"] == "timeout"
