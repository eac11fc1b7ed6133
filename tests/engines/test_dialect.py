"""What vLLM's completions mean, by hand."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from grace.cnf import Readout
from grace.engines import Sampling
from grace.engines.http.remote import Request, prompt_logprobs, read_steps, sample_body
from grace.engines.http.upstream import Upstream, UpstreamError
from grace.engines.reading import Reader

EOS, CNF = 3, 320


def choice(tops: list[dict[int, float]], chosen: list[int], **more: Any) -> dict[str, Any]:
    """A choice whose steps list these probabilities."""
    logs = [{f"token_id:{i}": math.log(p) for i, p in top.items()} for top in tops]
    names = [f"token_id:{i}" for i in chosen]
    values = [top[name] for top, name in zip(logs, names, strict=True)]
    listed = {"tokens": names, "token_logprobs": values, "top_logprobs": logs}
    return {"logprobs": listed, "finish_reason": None, **more}


def test_what_is_asked_leaves_nothing_to_the_server() -> None:
    sampling = Sampling(temperature=0.8, top_p=0.9, max_new_tokens=7)
    body = sample_body("m", Reader(Readout((CNF,)), (EOS,)), Request([5, 6], sampling, 11))
    assert body == {
        "model": "m",
        "prompt": [5, 6],
        "max_tokens": 7,
        "temperature": 0.8,
        "top_p": 0.9,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "stop_token_ids": [EOS, CNF],
        "return_tokens_as_token_ids": True,
        "return_token_ids": True,
        "stream": False,
        "seed": 11,
        "logprobs": 1,
        "logprob_token_ids": [EOS, CNF],
    }
    at_prompt = sample_body("m", Reader(Readout((CNF,)), (EOS,), "prompt"), Request([5], sampling))
    assert (at_prompt["logit_bias"], at_prompt["stop_token_ids"]) == ({"320": -100}, [EOS])


def test_the_last_step_of_a_stop_ends_whatever_its_id() -> None:
    tops = [{7: 0.5, EOS: 0.1, CNF: 0.2}, {9: 0.5, EOS: 0.1, CNF: 0.2}]
    steps = read_steps(choice(tops, [7, 9], finish_reason="stop"), (EOS, CNF))
    assert [step.ends for step in steps] == [False, True]
    assert [step.token for step in steps] == [7, 9]


def test_a_token_that_is_named_by_its_text_alone_is_malformed() -> None:
    said = choice([{7: 0.5}], [7])
    said["logprobs"]["tokens"] = ["What"]
    with pytest.raises(UpstreamError, match="for 0 token ids"):
        read_steps(said, ())


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"logprobs": []},
        {"logprobs": {"tokens": ["token_id:1"], "token_logprobs": [], "top_logprobs": [{}]}},
        {"logprobs": {"tokens": [1], "token_logprobs": [-1.0], "top_logprobs": [{}]}},
        {"logprobs": {"tokens": ["a"], "token_logprobs": ["x"], "top_logprobs": [{}]}},
        {"logprobs": {"tokens": ["a"], "token_logprobs": [None], "top_logprobs": [3]}},
        {"token_ids": [1, 2], "logprobs": None},
        {"token_ids": 7, "logprobs": {"tokens": ["a"]}},
    ],
)
def test_what_is_no_choice_is_malformed(wrong: dict[str, Any]) -> None:
    if wrong == {} or wrong.get("logprobs") == []:
        assert read_steps(wrong, ()) == []
        return
    with pytest.raises(UpstreamError) as caught:
        read_steps(wrong, ())
    assert caught.value.why == "malformed"


@pytest.mark.parametrize("value", [0.5, 2, math.inf, math.nan, 10**400, "-1", None])
@pytest.mark.parametrize("place", ["chosen", "listed", "prompt"])
def test_what_is_no_log_probability_is_malformed(value: Any, place: str) -> None:
    said = choice([{7: 0.5, EOS: 0.1, CNF: 0.2}], [7])
    with pytest.raises(UpstreamError) as caught:
        if place == "prompt":
            prompt_logprobs({"prompt_logprobs": [{"5": {"logprob": value}}]}, [5], 1)
        elif place == "chosen":
            said["logprobs"]["token_logprobs"] = [value]
        else:
            said["logprobs"]["top_logprobs"][0][f"token_id:{CNF}"] = value
        read_steps(said, (EOS, CNF))
    assert caught.value.why == "malformed"


def test_rounding_above_0_counts_as_0_and_a_huge_loss_as_none() -> None:
    said = choice([{7: 0.5, EOS: 0.1, CNF: 0.2}], [7])
    said["logprobs"]["token_logprobs"] = [1e-6]
    said["logprobs"]["top_logprobs"][0][f"token_id:{CNF}"] = -(10**400)
    (step,) = read_steps(said, (EOS, CNF))
    assert step.logprob == 0
    assert math.exp(step.logprobs[CNF]) == 0


def test_prompt_logprobs_are_those_of_the_given_tokens() -> None:
    rows = [None, {"5": {"logprob": -1.0}}, {"8": {"logprob": -0.1}, "6": {"logprob": -2.0}}]
    assert prompt_logprobs({"prompt_logprobs": rows}, [4, 5, 6], 2) == [-1.0, -2.0]
    with pytest.raises(UpstreamError, match="needs to score a given response"):
        prompt_logprobs({}, [4, 5, 6], 2)
    for wrong in (rows, 7, {"a": 1, "b": 2, "c": 3}):
        with pytest.raises(UpstreamError, match="lack a token"):
            prompt_logprobs({"prompt_logprobs": wrong}, [4, 7, 6], 2)


class Canned(BaseHTTPRequestHandler):
    """Answers a stream in awkward pieces."""

    pieces: tuple[bytes, ...] = ()
    kind = "text/event-stream; charset=utf-8"
    status = 200

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))  # unread, it would reset the line
        self.send_response(self.status)
        self.send_header("content-type", self.kind)
        self.end_headers()
        with contextlib.suppress(OSError):
            for piece in self.pieces:
                self.wfile.write(piece)
                self.wfile.flush()


@pytest.fixture
def canned() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Canned)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1/"
    server.shutdown()
    thread.join()
    server.server_close()


def streamed(url: str, *pieces: bytes) -> list[Any]:
    Canned.pieces = pieces

    async def run() -> list[Any]:
        upstream = Upstream(url, retries=0)
        try:
            return [part async for part in upstream.stream({})]
        finally:
            await upstream.close()

    return asyncio.run(run())


def test_only_a_line_feed_ends_an_event(canned: str) -> None:
    text = "a\u2028b\x85c"
    event = f'data: {{"choices": [{{"text": "{text}"}}]}}\r\n\r\n'.encode()
    pieces = (b": alive\n\n", event[:20], event[20:31], event[31:], b'data:{"choices":[]}\n\n')
    assert streamed(canned, *pieces, b"data: [DONE]\n\n") == [{"text": text}]


@pytest.mark.parametrize(
    "piece, why",
    [
        (b"", "broken"),
        (b'data: {"choices": [{"text": "a"}]}\n\n', "broken"),
        (b"data: 7\n\n", "malformed"),
        (b'data: {"choices": [1]}\n\n', "malformed"),
        (b'data: {"choices": [{}, {}]}\n\n', "malformed"),
        (b'data: {"error": {"message": "dead"}}\n\n', "failed"),
        (b"data: " + b"[" * 100_000 + b"\n\n", "malformed"),
    ],
)
def test_a_stream_that_is_none_says_why(canned: str, piece: bytes, why: str) -> None:
    with pytest.raises(UpstreamError) as caught:
        streamed(canned, piece)
    assert caught.value.why == why


def test_a_long_line_in_many_pieces_and_comments_between_events_are_read() -> None:
    async def listen() -> list[str]:
        class Pieces:
            async def aiter_bytes(self) -> Any:
                for piece in long:
                    yield piece

        long = [b"data: ", *[b"y" * 1000] * 3000, b"\n", b": still here\n\n", b"data: z\n"]
        upstream: Any = Upstream("http://127.0.0.1:9")
        return [event async for event in upstream._events(Pieces())]

    assert asyncio.run(listen()) == ["y" * 3_000_000, "z"]
