"""A request leaves nothing in memory, not even what Python's garbage collector would free later."""

from __future__ import annotations

import contextlib
import gc
import http.client
import json
import logging
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import torch
from live_server import NAME, Live, slowed

from fake_upstream import Server

REQUESTS = 3  # of each kind
WITHIN_S = 15.0  # for the last one to go; a connection is kept for 5 s
Body = dict[str, Any]
USER = [{"role": "user", "content": "Who?"}]
CHAT: Body = {"messages": USER, "max_tokens": 6}
HOT: Body = CHAT | {"temperature": 2.0, "grace": {"prompt": "raw"}}
ANSWERED: dict[str, tuple[str, Body, int]] = {
    "a question": ("chat/completions", CHAT | {"grace": {"budget": 1}}, 200),
    "a chat": ("chat/completions", HOT, 200),
    "samples": ("chat/completions", HOT | {"n": 8}, 200),
    "a stream": ("chat/completions", HOT | {"n": 2, "stream": True}, 200),
    "stop texts": ("completions", {"prompt": ["a", "b c"], "stop": ["e"], "max_tokens": 6}, 200),
    "a vote": ("chat/completions", CHAT | {"grace": {"budget": 4}}, 200),
    "early stopping": (
        "chat/completions",
        CHAT | {"grace": {"budget": 4, "parallel": 2, "threshold": 0.0}},
        200,
    ),
    "a streamed vote": ("chat/completions", CHAT | {"stream": True, "grace": {"budget": 3}}, 200),
    "ratings": ("score", {"input": [{"question": "Who?", "response": "I"}] * 3}, 200),
    "a long text": ("chat/completions", {"messages": [USER[0] | {"content": "a " * 999}]}, 400),
    "a bad field": ("chat/completions", CHAT | {"tools": [1]}, 400),
    "another model": ("chat/completions", CHAT | {"model": "other"}, 404),
}  # fmt: skip
STOPPED = ("a chat", "samples", "a stream", "a vote", "a streamed vote", "ratings")


@contextlib.contextmanager
def asked(live: Live, kind: str) -> Iterator[http.client.HTTPConnection]:
    path, body, _ = ANSWERED[kind]
    address = urlsplit(live.url)
    client = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
    with contextlib.closing(client):
        raw = json.dumps({"model": NAME, **body})
        client.request("POST", f"/v1/{path}", raw, {"Content-Type": "application/json"})
        yield client


def ask(live: Live, kind: str, *statuses: int) -> None:
    with asked(live, kind) as client:
        answer = client.getresponse()
        said = answer.read()
        assert answer.status in statuses, said


def new() -> Counter[str]:
    """Count the tensors and the objects of GrACE since `uncollected` began."""
    names = Counter[str]()
    for one in gc.get_objects():
        kind = type(one)
        if issubclass(kind, torch.Tensor) or str(kind.__module__).startswith("grace."):
            names[kind.__qualname__] += 1
    return names


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Leave everything that there is out of `new`, and collect no garbage meanwhile."""
    logging.disable()  # the tests' handler keeps what is logged
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
        logging.disable(logging.NOTSET)


def left() -> Counter[str]:
    """Return what is still there after some time."""
    end = time.monotonic() + WITHIN_S
    while (names := new()) and time.monotonic() < end:
        time.sleep(0.05)
    return names


@pytest.mark.parametrize("server", ["live", "proxy"])
def test_an_answer_leaves_nothing(server: str, request: pytest.FixtureRequest) -> None:
    live: Live = request.getfixturevalue(server)
    for kind, (_, _, status) in ANSWERED.items():
        ask(live, kind, status)
    for kind, (_, _, status) in ANSWERED.items():
        with uncollected():
            for _ in range(REQUESTS):
                ask(live, kind, status)
            assert not left(), kind


def test_a_failed_forward_pass_leaves_nothing(live: Live) -> None:
    def fail(*_: Any) -> None:
        raise errors[0]("CUDA out of memory")

    errors: list[type[Exception]] = [RuntimeError]
    for kind in STOPPED:
        for errors[0] in (RuntimeError, ValueError, MemoryError):
            with uncollected():
                hook = live.model.engine.model.lm_head.register_forward_hook(fail)
                try:
                    for _ in range(REQUESTS):
                        ask(live, kind, 500)
                finally:
                    hook.remove()
                assert not left(), (kind, errors)


def test_a_client_that_leaves_leaves_nothing(live: Live) -> None:
    for kind in STOPPED:
        with uncollected(), slowed(live.model, 0.02):
            for _ in range(REQUESTS):
                with asked(live, kind):
                    time.sleep(0.1)
            assert not left(), kind


@pytest.mark.parametrize("fails", ["500", "html", "cut"])
def test_a_failing_upstream_leaves_nothing(proxy: Live, upstream: Server, fails: str) -> None:
    ask(proxy, "a chat", 200)
    upstream.behaviour.fails = fails
    try:
        for kind in STOPPED:
            with uncollected():
                for _ in range(REQUESTS):
                    ask(proxy, kind, *((502, 200) if fails == "cut" else (502,)))
                assert not left(), kind
    finally:
        upstream.behaviour.fails = ""
