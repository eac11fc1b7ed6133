"""`--fallback`: a bigger model answers what this one is not sure of."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from live_server import NAME, Live, running

from grace.cli import main
from grace.errors import ConfigError
from grace.model import Model
from grace.server import FallbackSettings

QUESTION = "What is 7 and 49?"
USAGE = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}


class Big(ThreadingHTTPServer):
    """Another server, which answers "big" and keeps what it was asked."""

    daemon_threads = True
    status = 200

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.asked: list[dict[str, Any]] = []
        self.message: Any = {"role": "assistant", "content": "big"}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Answers(BaseHTTPRequestHandler):
    server: Big

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        assert self.path == "/v1/chat/completions"
        self.server.asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        choice = {"index": 0, "message": self.server.message, "finish_reason": "stop"}
        body = json.dumps({"choices": [choice], "usage": USAGE}).encode()
        self.send_response(self.server.status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def big() -> Iterator[Big]:
    with Big() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def unsure(tiny_model: Model, finished: Path, big: Big) -> Iterator[Live]:
    """A server that asks the bigger model in any case."""
    with served(tiny_model, finished, big, below=1.0) as server:
        yield server


def served(model: Model, finished: Path, big: Big, below: float) -> Any:
    fallback = FallbackSettings(url=big.url, model="large", below=below)
    return running(model, finished / "run", fallback=fallback)


def ask(live: Live, **options: Any) -> Any:
    return live.ask([{"role": "user", "content": QUESTION}], **options)


def outcomes(live: Live) -> dict[str, float]:
    lines = live.send("/metrics").text.splitlines()
    found = [one.split() for one in lines if one.startswith("grace_cascade_total{")]
    return {name.split('"')[1]: float(value) for name, value in found}


def test_an_unsure_answer_is_asked_again_and_says_whose_it_is(
    unsure: Live, big: Big, tiny_model: Model
) -> None:
    own = tiny_model.ask(QUESTION)
    answer = ask(unsure, max_tokens=24, seed=3)
    (choice,) = answer.choices
    assert (choice.message.content, choice.confidence) == ("big", None)
    assert choice.calibrated is False and "another model" in choice.no_confidence
    first = {"text": own.text, "confidence": pytest.approx(own.confidence, abs=1e-6)}
    assert answer.grace == {"answered_by": "large", "first": first, "usage": USAGE}
    *_, ended, told = ask(unsure, stream=True)
    assert ended.choices[0].finish_reason == "stop" and told.grace["answered_by"] == "large"
    assert [one["messages"][0]["content"] for one in big.asked] == [QUESTION, QUESTION]
    assert big.asked[0] == {
        "model": "large",
        "messages": [{"role": "user", "content": QUESTION}],
        "temperature": 0,
        "max_tokens": 24,
        "seed": 3,
    }
    assert outcomes(unsure) == {"forwarded": 2}


def test_votes_and_questions_with_options_are_forwarded_as_well(unsure: Live, big: Big) -> None:
    vote = ask(unsure, extra_body={"grace": {"budget": 2}})
    assert (vote.choices[0].message.content, vote.grace["answered_by"]) == ("big", "large")
    once = ask(unsure, extra_body={"grace": {"budget": 1, "threshold": 0.5}})
    assert once.grace["answered_by"] == "large" and "abstains" not in once.grace
    assert not any("grace" in one for one in big.asked)


def test_a_sure_answer_is_kept_and_several_are_not_forwarded(
    tiny_model: Model, finished: Path, big: Big, unsure: Live
) -> None:
    own = tiny_model.ask(QUESTION)
    with served(tiny_model, finished, big, below=1e-9) as sure:
        answer = ask(sure)
        assert answer.choices[0].message.content == own.text
        assert answer.choices[0].confidence == pytest.approx(own.confidence, abs=1e-6)
        assert answer.grace == {"answered_by": NAME}
        *parts, told = ask(sure, stream=True)
        text = "".join(part.choices[0].delta.content or "" for part in parts)
        assert (text, told.grace) == (own.text, {"answered_by": NAME})
        assert outcomes(sure) == {"kept": 2}
    assert len(ask(unsure, n=2).choices) == 2
    assert big.asked == []


@pytest.mark.parametrize("failure", [500, 401, "message"])
def test_where_the_other_server_fails_the_first_answer_stands_with_a_note(
    unsure: Live, big: Big, tiny_model: Model, failure: Any
) -> None:
    if failure == "message":
        big.message = None
    else:
        big.status = failure
    answer = ask(unsure)
    own = tiny_model.ask(QUESTION)
    assert answer.choices[0].message.content == own.text
    assert answer.choices[0].confidence == pytest.approx(own.confidence, abs=1e-6)
    assert answer.grace["answered_by"] == NAME and answer.grace["fallback_failed"]
    assert outcomes(unsure) == {"failed": 1}


def test_a_forced_function_is_passed_on_and_its_arguments_come_back(unsure: Live, big: Big) -> None:
    pytest.importorskip("llguidance", reason="pip install llguidance")
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    function = {"name": "f", "description": "adds", "parameters": schema}
    tool = {"type": "function", "function": function}
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 2}'}}
    big.message = {"role": "assistant", "content": None, "tool_calls": [call]}
    answer = ask(unsure, tools=[tool], tool_choice="required")
    assert answer.choices[0].message.tool_calls[0].function.arguments == '{"a": 2}'
    assert answer.choices[0].finish_reason == "tool_calls"
    assert (big.asked[0]["tools"], big.asked[0]["tool_choice"]) == ([tool], "required")


def test_a_fallback_is_named_whole_or_not_at_all(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for options, said in (
        (["--fallback", "http://127.0.0.1:1"], "all three"),
        (["--fallback", "here", "--fallback-model", "m", "--below", "0.5"], "not a server address"),
        (["--fallback", "http://h", "--fallback-model", "m", "--below", "2"], "below is 2"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["serve", str(finished / "run"), "--port", "0", *options])
        assert ended.value.code == 2
        assert said in capsys.readouterr().err
    with pytest.raises(ConfigError):
        FallbackSettings(url="http://h", model="m", below=0)
