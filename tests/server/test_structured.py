"""Answers that follow a JSON schema, from `grace serve` and `grace proxy`."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from typing import Any, Literal

import jsonschema
import openai
import pytest
from live_server import NAME, Live
from pydantic import BaseModel

from fake_upstream import Behaviour, Server
from grace.chat import encode_chat, encode_text
from grace.engines import Sampling
from grace.engines.local.sampling import SampleRequest
from grace.engines.structured import LONGEST_SCHEMA, Allowed, Form, FormError, Forms
from grace.evidence import Evidence
from grace.model import Model
from grace.records import Response

pytest.importorskip("llguidance", reason="pip install llguidance")

QUESTION = "What is 7 and 49?"
USER = [{"role": "user", "content": QUESTION}]


class Sum(BaseModel):
    """A record that a random model ends."""

    even: bool
    size: Literal["small", "large"]
    tens: Literal[0, 10, 20]


SCHEMA = Sum.model_json_schema()
FORMAT = {"type": "json_schema", "json_schema": {"name": "sum", "schema": SCHEMA}}
TOOL = {"type": "function", "function": {"name": "add", "parameters": SCHEMA}}
CALL = {"type": "function", "function": {"name": "add"}}


def ask(live: Live, messages: Any = USER, **options: Any) -> Any:
    return live.ask(messages, **options)


def responses(batch: Any) -> list[Response]:
    return [response for _, response in sorted(batch.finished())]


def encoded(model: Model) -> list[int]:
    return encode_chat(model.engine.tokenizer, model.messages(QUESTION))


def test_a_record_has_the_confidence_of_a_second_pass_and_leaves_its_neighbours_alone(
    tiny_model: Model,
) -> None:
    engine: Any = tiny_model.engine
    prompt, forms = encoded(tiny_model), Forms(engine.tokenizer, engine.reader)
    allowed = forms.compile(Form(SCHEMA))
    for temperature in (0.0, 1.0):
        free = SampleRequest([prompt], Sampling(2, temperature, max_new_tokens=12), ["0"])
        many = Sampling(3, temperature, max_new_tokens=100)
        bound = SampleRequest([prompt], many, ["1"], [allowed.begin() for _ in range(3)])
        alone = responses(engine.batch([free]))
        batch = engine.batch([free])
        for step, _ in enumerate(batch):
            if step == 0:
                batch.add(bound)
        *others, first, second, third = batch.responses(range(5))
        assert [one.token_ids for one in others] == [one.token_ids for one in alone]
        for one in (first, second, third):
            jsonschema.validate(json.loads(one.text), SCHEMA)
            (c,) = engine.confidences([prompt], [one.token_ids])
            assert one.confidence == pytest.approx(c, abs=1e-5)
        assert (first.text == second.text == third.text) == (temperature == 0)


@pytest.mark.parametrize("where", ["live", "proxy"])
def test_an_answer_follows_its_schema_whole_and_streamed(
    where: str, tiny_model: Model, request: pytest.FixtureRequest
) -> None:
    served: Live = request.getfixturevalue(where)
    (choice,) = ask(served, response_format=FORMAT, logprobs=True).choices
    jsonschema.validate(json.loads(choice.message.content), SCHEMA)
    assert choice.finish_reason == "stop" and choice.calibrated is False
    listed = choice.logprobs.content[-1].top_logprobs[-1]
    assert listed.token == "<CNF>"
    assert math.exp(listed.logprob) == pytest.approx(choice.confidence, abs=1e-6)
    engine: Any = tiny_model.engine
    allowed = Forms(engine.tokenizer, engine.reader).compile(Form(SCHEMA))
    asked = SampleRequest([encoded(tiny_model)], Sampling(1, 0.0), ["0"], [allowed])
    (own,) = responses(engine.batch([asked]))
    assert (choice.message.content, choice.confidence) == (
        own.text,
        pytest.approx(own.confidence, abs=1e-5),
    )
    *parts, last = ask(served, response_format=FORMAT, stream=True)
    assert "".join(part.choices[0].delta.content or "" for part in parts) == own.text
    assert last.choices[0].confidence == pytest.approx(own.confidence, abs=1e-5)


@pytest.mark.parametrize("where", ["live", "proxy"])
@pytest.mark.parametrize("choice", [CALL, "required"])
def test_a_forced_function_is_called(
    where: str, choice: Any, request: pytest.FixtureRequest
) -> None:
    served: Live = request.getfixturevalue(where)
    options = {"tools": [TOOL], "tool_choice": choice}
    (answer,) = ask(served, **options).choices
    (call,) = answer.message.tool_calls
    jsonschema.validate(json.loads(call.function.arguments), SCHEMA)
    assert (call.function.name, answer.message.content) == ("add", None)
    assert answer.finish_reason == "tool_calls" and 0 < answer.confidence < 1
    first, *parts = ask(served, **options, stream=True)
    (named,) = first.choices[0].delta.tool_calls
    assert (named.index, named.function.name, named.type) == (0, "add", "function")
    written = [call for part in parts for call in part.choices[0].delta.tool_calls or ()]
    assert "".join(one.function.arguments for one in written) == call.function.arguments
    assert parts[-1].choices[0].confidence == pytest.approx(answer.confidence, abs=1e-6)


def test_each_field_has_its_value_and_confidence_whole_streamed_and_scored(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not hasattr(ask(live, response_format=FORMAT).choices[0], "fields")
    engine: Any = live.model.engine
    low = replace(Evidence.none(), bias=-1.0)
    fitted = replace(Evidence.none(), fields={"": low, "size": replace(low, bias=1.0)})
    monkeypatch.setattr(engine, "reader", replace(engine.reader, evidence=fitted))
    (choice,) = ask(live, response_format=FORMAT).choices
    text = choice.message.content
    ids = encode_text(engine.tokenizer, text)
    (wanted,) = engine.rated([encoded(live.model)], [ids])
    assert [*wanted.fields] == ["even", "size", "tens"]
    *_, last = ask(live, response_format=FORMAT, stream=True)
    (called,) = ask(live, tools=[TOOL], tool_choice=CALL).choices
    body = {"model": NAME, "input": [{"question": QUESTION, "response": text}]}
    with live.client() as client:
        (scored,) = client.post("/score", body=body, cast_to=object)["data"]
    for found in (choice.fields, last.choices[0].fields, called.fields, scored["fields"]):
        assert {name: one["value"] for name, one in found.items()} == json.loads(text)
        for name, one in found.items():
            c = wanted.fields[name]["confidence"]
            assert one["confidence"] == pytest.approx(c, abs=1e-5)
    (cut,) = ask(live, response_format=FORMAT, max_tokens=len(ids) - 2).choices
    assert (cut.finish_reason, cut.confidence) == ("length", None)
    assert [*cut.fields] == ["even", "size"]


def test_the_official_client_parses_a_record_and_sends_it_back(live: Live) -> None:
    with live.client() as client:
        parsed = client.chat.completions.parse(
            model=NAME, messages=USER, temperature=0, response_format=Sum
        )
    assert isinstance(parsed.choices[0].message.parsed, Sum)
    (choice,) = ask(live, tools=[TOOL], tool_choice=CALL).choices
    call = choice.message.model_dump(exclude_none=True)
    result = {"role": "tool", "tool_call_id": choice.message.tool_calls[0].id, "content": "odd!"}
    again = ask(live, messages=[*USER, call, result], tools=[TOOL], tool_choice=CALL)
    assert Sum.model_validate_json(again.choices[0].message.tool_calls[0].function.arguments)


def test_a_schema_beside_json_object_is_followed(live: Live) -> None:
    format = {"type": "json_object", "schema": SCHEMA}
    assert ask(live, response_format=format).choices == ask(live, response_format=FORMAT).choices


def test_any_object_and_as_many_as_asked_for(live: Live) -> None:
    answer = ask(live, response_format={"type": "json_object"}, temperature=1, n=4, seed=0)
    for choice in answer.choices:
        if choice.finish_reason == "stop":
            assert isinstance(json.loads(choice.message.content), dict)
        else:  # the model may write on and on
            assert choice.finish_reason == "length" and choice.confidence is None
    short = ask(live, response_format=FORMAT, max_tokens=3).choices[0]
    assert (short.finish_reason, short.confidence) == ("length", None)


def test_a_record_may_be_longer_than_the_answers_of_the_run(live: Live) -> None:
    assert live.model.sample.longest < 40
    digits = {"type": "array", "items": {"enum": [0, 1]}, "minItems": 30, "maxItems": 30}
    format = {"type": "json_schema", "json_schema": {"name": "digits", "schema": digits}}
    assert len(json.loads(ask(live, response_format=format).choices[0].message.content)) == 30


def nested(levels: int) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (nested(300), "cannot be followed"),
        ({"enum": ["x" * LONGEST_SCHEMA]}, "bytes; send at most"),
        ({"type": "object", "not": {"type": "string"}}, 'Unimplemented keys: ["not"]'),
        ({"$ref": "#"}, "cannot be followed"),
        ({"$ref": "http://127.0.0.1:9/schema.json"}, "cannot be followed"),
        ({"type": "integer", "minimum": 2, "maximum": 1}, "cannot be followed"),
        ({"type": "integer", "minimum": 10**400}, "cannot be followed"),
        ({"type": "string", "pattern": "(?=a)b"}, "(?=a)b error: look-around"),
        (
            {"type": "string", "pattern": "^((a{1,999}){1,999}b?){1,999}(?=c)$"},
            "cannot be followed",
        ),
    ],
)
def test_a_schema_that_cannot_be_followed_is_refused_in_one_line(
    live: Live, schema: Any, said: str
) -> None:
    format = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    with pytest.raises(openai.BadRequestError) as refused:
        ask(live, response_format=format)
    message = refused.value.body["message"]
    assert said in message and "\n" not in message and len(message) < 500


@pytest.mark.parametrize("schema", [{"type": "number", "minimum": math.nan}, {"const": "\ud800"}])
def test_a_schema_that_cannot_be_written_as_json_is_refused(served: Live, schema: Any) -> None:
    format = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    body = {"model": NAME, "messages": USER, "response_format": format}
    status, answer = served.post("/v1/chat/completions", body)
    assert status == 400 and "cannot be written as JSON" in answer["error"]["message"], answer


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"tools": [TOOL]}, "tools"),
        (
            {"tools": [TOOL, TOOL | {"function": {"name": "other"}}], "tool_choice": "required"},
            "tools",
        ),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}},
            "tools",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": CALL, "response_format": FORMAT}, "response_format"),
        ({"response_format": FORMAT, "extra_body": {"grace": {"budget": 4}}}, "grace"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "grammar", "grammar": "x"}}, "response_format"),
        ({"response_format": {"type": "json_object", "grammar": "x"}}, "response_format"),
    ],
)
def test_a_form_that_is_not_offered_is_refused_by_name(
    live: Live, options: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        ask(live, **options)
    assert str(refused.value.body["param"]).startswith(param)


def test_tools_that_must_not_be_called_change_nothing(live: Live) -> None:
    plain = ask(live).choices[0].message
    assert ask(live, tools=[TOOL], tool_choice="none").choices[0].message == plain


def test_a_form_that_grows_too_complex_fails_its_request_alone(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Allowed) -> None:
        raise FormError("the answer's form became too complex (made up); use a simpler schema")

    with monkeypatch.context() as changed:
        changed.setattr(Allowed, "check", broken)
        with pytest.raises(openai.BadRequestError, match="too complex"):
            ask(live, response_format=FORMAT)
        assert ask(live).choices
    assert ask(live, response_format=FORMAT).choices


def test_without_llguidance_the_package_is_named(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(openai.APIStatusError) as refused:
        ask(live, response_format=FORMAT)
    assert "pip install 'grace-confidence[structured]'" in refused.value.body["message"]
    assert ask(live).choices


def test_the_proxy_hands_the_schema_on_and_rates_afterwards(
    proxy: Live, upstream: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream.behaviour = Behaviour()
    ask(proxy, tools=[TOOL], tool_choice=CALL)
    drawn, *rating = upstream.behaviour.requests
    assert drawn["response_format"]["json_schema"]["schema"] == SCHEMA
    assert rating and not any("response_format" in one for one in rating)
