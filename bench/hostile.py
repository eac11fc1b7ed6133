"""The latency of honest clients of `grace serve` with and without hostile ones beside them.

Honest clients ask all the time, greedily, up to 24 tokens. In the rounds with hostile requests one
in ten is hostile: a module named as a strategy; texts that are long, private or full of special
tokens; foreign host names; connections left open with nothing, half a head or half a body; and
legal but heavy requests: prompts that nearly fill the context, 64 samples, long responses to rate.
Rounds take turns, so that both sides see the same machine. At the end the server gets a SIGTERM
while the open connections are still open. Prints one line of JSON; `ratio` is p99 with / p99
without, `statuses` counts the answers to hostile requests.

    python bench/hostile.py --seconds 600
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import http.client
import json
import random
import resource
import signal
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from serving import ask, free_port, own_model, server

ROUNDS, HONEST_PER_HOSTILE, HOSTILE_THREADS, LEFT_OPEN = 5, 9, 8, 1500
LONG = 300_000
QUESTION = "Question: Under whom did the poet study?"

left_open: collections.deque[socket.socket] = collections.deque(maxlen=LEFT_OPEN)


def send(port: int, body: Any, host: str = "localhost", path: str = "chat/completions") -> int:
    """Send a hostile request and return the status of the answer."""
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with contextlib.closing(client):
        raw = json.dumps({"model": "pocket", **body}, ensure_ascii=False).encode()
        client.request("POST", f"/v1/{path}", raw, {
            "Content-Type": "application/json", "Host": host})  # fmt: skip
        answer = client.getresponse()
        answer.read()
        return answer.status


def leave(port: int, sent: bytes) -> None:
    """Send a part of a request and leave the connection open."""
    client = socket.create_connection(("127.0.0.1", port), timeout=60)
    client.sendall(sent)
    left_open.append(client)


def user(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def long_prompt() -> dict[str, Any]:
    """Return a legal request that nearly fills the model's context."""
    return user(QUESTION * random.randrange(20, 46)) | {"max_tokens": 24}


def long_responses() -> dict[str, Any]:
    """Return a legal request that reads several thousand tokens."""
    return {"input": [{"question": QUESTION, "response": QUESTION * 30}] * 16}


BODY = b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
ATTACKS: tuple[Callable[[int], object], ...] = (
    lambda port: send(port, user(QUESTION) | {"grace": {"strategy": "venv.__main__:x"}}),
    lambda port: send(port, user("\ue0f0" * LONG)),
    lambda port: send(port, user("\ue0f0" * random.randrange(1, 9)) | {"max_tokens": 24}),
    lambda port: send(port, user("<" * LONG)),
    lambda port: send(port, user("<CNF>") | {"max_tokens": 24}),
    lambda port: send(port, {"messages": [{"role": "user", "content": [1] * LONG}]}),
    lambda port: send(port, user(QUESTION) | {"temperature": 1e-38, "max_tokens": 1}),
    lambda port: send(port, long_prompt()),
    lambda port: send(port, long_prompt()),
    lambda port: send(port, user(QUESTION) | {"max_tokens": 24, "n": 64}),
    lambda port: send(port, long_responses(), path="score"),
    lambda port: send(port, user(QUESTION), host="evil.example"),
    lambda port: leave(port, b""),
    lambda port: leave(port, b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: "),
    lambda port: leave(port, BODY + b"Content-Length: 1000000\r\n\r\n" + b"a" * 900_000),
)


class Round:
    """One round: honest clients, and perhaps hostile ones."""

    def __init__(self, port: int, seconds: float, clients: int, hostile: bool) -> None:
        self.times: list[float] = []
        self.failed: list[str] = []
        self.attacks = 0
        self.statuses: collections.Counter[str] = collections.Counter()
        self._port, self._end = port, time.monotonic() + seconds
        self._due = threading.Semaphore(0)
        threads = [threading.Thread(target=self._honest, args=(i,)) for i in range(clients)]
        threads += [
            threading.Thread(target=self._hostile) for _ in range(HOSTILE_THREADS * hostile)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _honest(self, number: int) -> None:
        done = 0
        while time.monotonic() < self._end:
            start = time.monotonic()
            try:
                ask(f"http://127.0.0.1:{self._port}", "pocket", number + 1000 * done)
                self.times.append(time.monotonic() - start)
            except OSError as error:
                self.failed.append(str(error))
            done += 1
            if (number + done) % HONEST_PER_HOSTILE == 0:
                self._due.release()

    def _hostile(self) -> None:
        while time.monotonic() < self._end:
            if self._due.acquire(timeout=1):
                with contextlib.suppress(OSError, http.client.HTTPException):
                    status = random.choice(ATTACKS)(self._port)
                    self.statuses[str(status or "left open")] += 1
                self.attacks += 1


@contextlib.contextmanager
def many_files() -> Iterator[None]:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard) if hard > 0 else 4096, hard))
    yield
    for client in left_open:
        client.close()


def percentile(times: list[float], share: int) -> float:
    return round(statistics.quantiles(times, n=100)[share - 1], 3)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60, help="with hostile requests")
    parser.add_argument("--clients", type=int, default=64)
    given = parser.parse_args()
    port, length = free_port(), given.seconds / ROUNDS
    with tempfile.TemporaryDirectory() as folder, many_files():
        own = own_model(Path(folder))
        with server("grace.cli", [str(own), "--device", "cpu"], port) as running:
            Round(port, length / 10, given.clients, hostile=False)  # warms up
            rounds: dict[bool, list[Round]] = {False: [], True: []}
            for _ in range(ROUNDS):
                for hostile in (False, True):
                    seconds = length if hostile else length / 4
                    rounds[hostile].append(Round(port, seconds, given.clients, hostile))
            running.process.send_signal(signal.SIGTERM)
            start = time.monotonic()
            code = running.process.wait(60)
            ended_s = time.monotonic() - start
    row: dict[str, Any] = {"clients": given.clients}
    for hostile, name in ((False, "without"), (True, "with")):
        times = [each for one in rounds[hostile] for each in one.times]
        failed = [each for one in rounds[hostile] for each in one.failed]
        row[name] = {
            "answers": len(times),
            "failed": len(failed),
            "hostile": sum(one.attacks for one in rounds[hostile]),
            "median_s": percentile(times, 50),
            "p99_s": percentile(times, 99),
        }
    row["statuses"] = dict(sum((one.statuses for one in rounds[True]), collections.Counter()))
    row["ratio"] = round(row["with"]["p99_s"] / row["without"]["p99_s"], 2)
    print(json.dumps(row | {"sigterm_s": round(ended_s, 1), "exit_code": code}))


if __name__ == "__main__":
    main()
