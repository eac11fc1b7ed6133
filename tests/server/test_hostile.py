"""What clients without good will can do to a server: it goes on answering the others."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from live_server import NAME, Live, running

from forks import Command
from grace.chat.plain import PlainTokenizer
from grace.server import guard

ENDS_S = 10


def connect(url: str) -> socket.socket:
    address = urlsplit(url)
    return socket.create_connection((address.hostname, address.port), timeout=60)


def post(
    url: str, body: Any, path: str = "/v1/chat/completions", **headers: str
) -> tuple[int, Any]:
    address = urlsplit(url)
    client = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
    with contextlib.closing(client):
        head = {"Content-Type": "application/json", **headers}
        client.request("POST", path, json.dumps(body), head)
        answer = client.getresponse()
        return answer.status, json.loads(answer.read())


def health(url: str, **headers: str) -> int:
    address = urlsplit(url)
    client = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
    with contextlib.closing(client):
        client.request("GET", "/health", headers=headers)
        return client.getresponse().status


def begun(url: str, length: int, sent: bytes = b"") -> socket.socket:
    """Return a connection with a request whose body is not there in full."""
    client = connect(url)
    head = f"POST /v1/score HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n"
    client.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + sent)
    return client


@pytest.mark.parametrize(
    "host, status",
    [
        ("evil.example", 421),
        ("evil.example:8000", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost.evil.example", 421),
        ("[evil]", 421),
        ("localhost", 200),
        ("LOCALHOST.:80", 200),
        ("127.0.0.1:1", 200),
        ("[::1]:8000", 200),
        ("192.0.2.7", 200),  # an address cannot be rebound
        ("model.lan", 200),
        ("Model.LAN:8000", 200),
        ("other.lan", 200),
        ("", 200),  # as a client of HTTP/1.0 may send it
    ],
)
def test_only_the_servers_own_names_are_answered(
    live: Live, finished: Path, host: str, status: int
) -> None:
    with running(live.model, finished / "run", hosts=("model.lan", "Other.lan:8000")) as named:
        assert health(named.url, Host=host) == status
        answered, answer = post(named.url, {}, Host=host)
        assert answered == (400 if status == 200 else 421)
        assert (answer["error"]["code"] == "unknown_host") == (status == 421)


def test_a_body_that_does_not_arrive_is_refused(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "BODY_S", 0.3)
    with begun(live.url, 100, b"{") as client:
        assert client.recv(100).startswith(b"HTTP/1.1 408 ")


def test_a_client_without_a_key_does_not_hold_a_connection(
    live: Live, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "REFUSED_S", 0.3)
    with running(live.model, finished / "run", api_key="yes") as server:
        with begun(server.url, 100, b"{") as client:
            assert client.recv(100).startswith(b"HTTP/1.1 401 ")
        assert post(server.url, {})[0] == 401


@pytest.mark.parametrize("kind", ["live", "proxy"])
def test_a_text_that_cannot_fit_is_refused_before_most_of_it_is_read(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    server: Live = request.getfixturevalue(kind)
    read, text = 0, "\ue0f0" * 150_000
    plain = PlainTokenizer._ids

    def counted(self: PlainTokenizer, text: str) -> list[int]:
        nonlocal read
        read += len(text)
        return plain(self, text)

    monkeypatch.setattr(PlainTokenizer, "_ids", counted)
    user = {"messages": [{"role": "user", "content": text}]}
    bodies: list[tuple[str, Any]] = [
        ("/v1/chat/completions", user),
        ("/v1/chat/completions", user | {"grace": {"budget": 1}}),
        ("/v1/chat/completions", user | {"grace": {"budget": 4}}),
        ("/v1/completions", {"prompt": text}),
        ("/v1/score", {"input": [{"prompt": "a", "response": text}]}),
        ("/v1/score", {"input": [{"question": text, "response": "a"}]}),
    ]
    for path, body in bodies:
        status, answer = post(server.url, {"model": NAME, **body}, path)
        error = answer["error"]
        assert (status, error["code"]) == (400, "context_length_exceeded"), error
        assert re.search(r"has over \d+ tokens, but the model's context is", error["message"])
    assert read < len(bodies) * len(text) / 10


def test_text_is_not_tokenised_on_the_models_thread(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = set()
    plain = PlainTokenizer._ids

    def noted(self: PlainTokenizer, text: str) -> list[int]:
        seen.add(threading.current_thread().name.rpartition("_")[0])
        return plain(self, text)

    monkeypatch.setattr(PlainTokenizer, "_ids", noted)
    user = [{"role": "user", "content": "<CNF>"}]
    for grace in (None, {"budget": 1}, {"budget": 2}):
        body = {"model": NAME, "messages": user, "grace": grace, "max_tokens": 2}
        assert post(live.url, body)[0] == 200
    score = {"model": NAME, "input": [{"question": "<CNF>", "response": "<CNF>"}]}
    assert post(live.url, score, "/v1/score")[0] == 200
    assert seen == {"asyncio"}


def unread(url: str) -> list[socket.socket]:
    """Ask for long streams and read none of them."""
    body = json.dumps({"model": NAME, "prompt": ["a"] * 8, "n": 8, "max_tokens": 200,
                       "temperature": 2, "stream": True, "logprobs": 20}).encode()  # fmt: skip
    asked = []
    for _ in range(4):
        asked.append(begun(url, len(body)))
        asked[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        asked[-1].sendall(body)
    return asked


STATES: list[Callable[[str], list[socket.socket]]] = [
    lambda url: [begun_head(url) for _ in range(20)],  # heads that do not end
    lambda url: [begun(url, 1000, b"{") for _ in range(20)],  # bodies that do not end
    unread,
    lambda url: [asking(url, number) for number in range(40)],  # a long queue
    lambda url: [asking(url, 0, "\ue0f0" * 300_000) for _ in range(8)],  # that cannot fit
    lambda url: [connect(url) for _ in range(20)],
]


def begun_head(url: str) -> socket.socket:
    client = connect(url)
    client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ")
    return client


def asking(url: str, seed: int, text: str = "a") -> socket.socket:
    """Return a connection with a request of many tokens; nobody waits for the answer."""
    body = {"model": NAME, "prompt": text, "n": 32, "max_tokens": 200, "temperature": 1.5}
    raw = json.dumps(body | {"seed": seed}, ensure_ascii=False).encode()
    return begun(url, len(raw), raw)


def test_a_server_ends_whatever_its_clients_leave_open(finished: Path) -> None:
    with Command("serve", str(finished / "run"), "--port", "0", "--name", NAME) as server:
        found = re.search(r"http://127\.0\.0\.1:\d+", server.stdout.readline())
        assert found, server.stderr.read()
        clients = [client for state in STATES for client in state(found.group())]
        time.sleep(0.5)  # they are all there
        server.send_signal(signal.SIGTERM)
        assert server.wait(ENDS_S) == 0
        assert "Traceback" not in server.stderr.read()
    for client in clients:
        client.close()


@pytest.mark.parametrize(
    "head, status",
    [
        ("Content-Type: application/json\r\nAuthorization: Bearer no", 401),
        ("Content-Type: application/json\r\nAuthorization: Bearer yes", 413),
        ("Content-Type: application/json\r\nHost: evil.example", 421),
    ],
)
def test_a_refusal_reaches_a_client_that_is_still_sending(
    live: Live, finished: Path, head: str, status: int
) -> None:
    host = "" if "Host" in head else "Host: localhost\r\n"
    size = guard.MAX_BODY + 1
    with (
        running(live.model, finished / "run", api_key="yes") as server,
        connect(server.url) as client,
    ):
        line = f"POST /v1/score HTTP/1.1\r\n{host}{head}\r\nContent-Length: {size}\r\n\r\n"
        client.sendall(line.encode())
        client.sendall(b" " * size)
        assert client.recv(12).endswith(b" %d" % status)
        while client.recv(4096):  # the whole answer, and then the end
            pass
