"""`/v1/responses` as the official client sees it."""

from __future__ import annotations

import json
from typing import Any, Literal

import openai
import pytest
from live_server import NAME, Live
from pydantic import BaseModel

from grace.model import Model

QUESTION = "What is 7 and 49?"


def respond(live: Live, **options: Any) -> Any:
    options = {"input": QUESTION, "temperature": 0, **options}
    with live.client() as client:
        answer = client.responses.create(model=NAME, **options)
        return list(answer) if options.get("stream") else answer


@pytest.mark.parametrize("where", ["live", "proxy"])
def test_a_response_has_the_answer_and_its_confidence(
    where: str, tiny_model: Model, request: pytest.FixtureRequest
) -> None:
    served: Live = request.getfixturevalue(where)
    own = tiny_model.ask(QUESTION)
    answer = respond(served)
    (item,) = answer.output
    assert (answer.status, answer.output_text, item.type) == ("completed", own.text, "message")
    assert item.confidence == pytest.approx(own.confidence, abs=1e-5) and item.calibrated is True
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens > 0
    *events, last = respond(served, stream=True)
    assert [event.sequence_number for event in (*events, last)] == list(range(len(events) + 1))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == own.text == last.response.output_text
    assert last.type == "response.completed"
    assert last.response.output[0].confidence == pytest.approx(own.confidence, abs=1e-5)
    assert last.response.usage == answer.usage


def test_turns_instructions_votes_and_lengths_are_those_of_a_chat(live: Live) -> None:
    turns = [
        {"role": "user", "content": [{"type": "input_text", "text": QUESTION}]},
        {"role": "assistant", "content": "56"},
        {"role": "user", "content": "Sure?"},
    ]
    answer = respond(live, input=turns, instructions="Be brief.")
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}]
    chat += [{"role": "assistant", "content": "56"}, {"role": "user", "content": "Sure?"}]
    with live.client() as client:
        own = client.chat.completions.create(model=NAME, messages=chat, temperature=0)
    assert answer.output_text == own.choices[0].message.content
    assert answer.output[0].calibrated is False
    with pytest.raises(openai.BadRequestError, match="the model's context is"):
        respond(live, input=turns[-1:] * 1024, instructions="Be brief.")
    short = respond(live, max_output_tokens=1)
    if short.status == "incomplete":
        assert short.incomplete_details.reason == "max_output_tokens"
        assert short.output[0].confidence is None
    vote = respond(live, temperature=None, extra_body={"grace": {"budget": 2}})
    assert vote.grace["samples"] <= 2


def test_a_response_follows_a_schema(live: Live) -> None:
    pytest.importorskip("llguidance", reason="pip install llguidance")

    class Sum(BaseModel):
        even: bool
        size: Literal["small", "large"]

    with live.client() as client:
        answer = client.responses.parse(model=NAME, input=QUESTION, temperature=0, text_format=Sum)
    assert isinstance(answer.output_parsed, Sum) and answer.output[0].calibrated is False


def test_an_error_within_a_stream_is_its_last_event(live: Live, monkeypatch: Any) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("made up")

    monkeypatch.setattr("grace.server.replies.Envelope.ending", broken)
    body = {"model": NAME, "input": QUESTION, "stream": True}
    lines = live.send("/v1/responses", body).text.strip().splitlines()
    last = json.loads(lines[-1].removeprefix("data: "))
    assert (last["type"], last["code"]) == ("error", "internal")


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"reasoning": {"effort": "high"}}, "reasoning"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0]"),
        ({"text": {"format": {"type": "json_object", "schema": {}}}}, "text.format"),
        ({"max_output_tokens": 10**6}, "max_completion_tokens"),
    ],
)
def test_what_is_not_offered_is_refused_by_name(
    live: Live, options: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        respond(live, **options)
    assert str(refused.value.body["param"]).startswith(param)
