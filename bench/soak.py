"""What load does to `grace serve` (pocket weights): its memory, its latency, and hostile clients.

    python bench/soak.py memory --requests 25000
    python bench/soak.py hostile --minutes 10
    python bench/soak.py keep-alive

`memory` sends requests of every kind and prints the server's resident memory at rest: after 500
requests, the largest after that, and their difference. `hostile` lets 64 clients ask greedily for
up to 24 tokens, in turns without and with hostile ones among them: one in ten clients then attacks
with floods of tiny chunks, bodies of 1 MiB, wrong keys, deep JSON, foreign host names, connections
left open, answers that nobody reads, and legal but heavy requests. Rounds take turns, so that both
sides see the same machine; `ratio` is the others' p99 with / without. At the end the server gets a
SIGTERM while the open connections are still open. `keep-alive` prints the median time of /health
and of a short chat on one connection. Each prints one line of JSON.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import http.client
import json
import math
import os
import random
import re
import resource
import signal
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from serving import PEOPLE, Running, free_port, own_model, server

KEY = "s3cret"
STEP, REST_S = 500, 2.0  # requests of `memory` between two readings; of rest before each
ROUNDS, LEFT_OPEN, FLOOD_S = 5, 300, 5.0
LONG = 300_000
QUESTION = "Question: Under whom did the poet study?"
Body = dict[str, Any]

left_open: collections.deque[socket.socket] = collections.deque(maxlen=LEFT_OPEN)


class Client:
    """A client that keeps its connection."""

    def __init__(self, port: int, timeout_s: float = 600) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)

    def get(self, path: str) -> int:
        """Return the status of a page."""
        self._connection.request("GET", path)
        return self._answer()

    def post(
        self, body: Body | bytes, path: str = "chat/completions", key: str = KEY, **head: str
    ) -> int:
        """Return the status of the answer to a body."""
        raw = body if isinstance(body, bytes) else written(body)
        head = {"Content-Type": "application/json", "Authorization": f"Bearer {key}", **head}
        self._connection.request("POST", f"/v1/{path}", raw, head)
        return self._answer()

    def _answer(self) -> int:
        answer = self._connection.getresponse()
        answer.read()
        return answer.status

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def written(body: Body) -> bytes:
    return json.dumps({"model": "pocket", **body}, ensure_ascii=False).encode()


def once(port: int, body: Body | bytes, **options: Any) -> int:
    """Send a request on a connection of its own and return the status of the answer."""
    with contextlib.closing(Client(port, timeout_s=60)) as client:
        return client.post(body, **options)


def user(text: str, **more: Any) -> Body:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 24, **more}


def question(number: int, **more: Any) -> Body:
    text = f"Question: Under whom did the {PEOPLE[number % len(PEOPLE)]} number {number} study?"
    return user(text, temperature=0, grace={"prompt": "raw"}, **more)


def long_prompt() -> Body:
    """Return a legal request that nearly fills the model's context."""
    return user(QUESTION * random.randrange(20, 46))


def long_responses() -> Body:
    """Return a legal request that reads several thousand tokens."""
    return {"input": [{"question": QUESTION, "response": QUESTION * 30}] * 16}


def leave(port: int, sent: bytes) -> None:
    """Send a part of a request and leave the connection open."""
    client = socket.create_connection(("127.0.0.1", port), timeout=60)
    client.sendall(sent)
    left_open.append(client)


def flood(port: int, head: bytes, part: bytes) -> None:
    """Send a part again and again, until the server hangs up."""
    end = time.monotonic() + FLOOD_S
    with socket.create_connection(("127.0.0.1", port), timeout=FLOOD_S) as client:
        client.sendall(head)
        while time.monotonic() < end:
            client.sendall(part * 10_000)
            time.sleep(0.05)


def unread(port: int) -> None:
    """Ask for a long stream and read none of it."""
    body = user("a", n=16, stream=True, temperature=2)
    raw = written(body | {"max_tokens": 200, "logprobs": True, "top_logprobs": 20})
    leave(port, HEAD + b"Content-Length: %d\r\n\r\n" % len(raw) + raw)


NAMED = b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
HEAD = NAMED.replace(b"score", b"chat/completions") + b"Authorization: Bearer %b\r\n" % KEY.encode()
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
DEEP = b'{"model": "pocket", "messages": ' + b"[" * 500_000 + b"]" * 500_000 + b"}"
ATTACKS: tuple[Callable[[int], object], ...] = (
    lambda port: flood(port, HEAD + CHUNKED, b"1\r\n \r\n"),
    lambda port: flood(port, NAMED + CHUNKED, b"1\r\n \r\n"),  # without the key
    lambda port: flood(port, NAMED + b"Content-Length: 9999999999\r\n\r\n", b" "),
    lambda port: flood(port, b"PUT /x HTTP/1.1\r\nHost: localhost\r\n" + CHUNKED, b"1\r\n \r\n"),
    lambda port: once(port, user("7" * (2**20 - 200))),
    lambda port: once(port, user("\ue0f0" * LONG)),
    lambda port: once(port, {"input": [{"question": "a", "response": "a " * LONG}]}, path="score"),
    lambda port: once(port, b" " * 2**21),
    lambda port: once(port, DEEP),
    lambda port: once(port, {"messages": [{"role": "user", "content": [1] * LONG}]}),
    lambda port: once(port, user(QUESTION), key="wrong"),
    lambda port: once(port, user("a" * LONG), key="wrong"),
    lambda port: once(port, user(QUESTION), Host="evil.example"),
    lambda port: once(port, user(QUESTION, grace={"strategy": "venv.__main__:x"})),
    lambda port: once(port, user("<CNF>" * 9)),
    lambda port: once(port, long_prompt()),
    lambda port: once(port, user(QUESTION, n=64)),
    lambda port: once(port, long_responses(), path="score"),
    lambda port: unread(port),
    lambda port: leave(port, b""),
    lambda port: leave(port, b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: "),
    lambda port: leave(port, HEAD + b"Content-Length: 1000000\r\n\r\n" + b"a" * 900_000),
)


class Round:
    """One round: honest clients, and perhaps hostile ones among them."""

    def __init__(self, port: int, seconds: float, clients: int, hostile: bool) -> None:
        self.times: list[float] = []
        self.failed: list[str] = []
        self.statuses: collections.Counter[str] = collections.Counter()
        self._port, self._end = port, time.monotonic() + seconds
        bad = clients // 10
        threads = [threading.Thread(target=self._honest, args=(i,)) for i in range(clients - bad)]
        if hostile:
            threads += [threading.Thread(target=self._hostile) for _ in range(bad)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _honest(self, number: int) -> None:
        client, done = Client(self._port), 0
        while time.monotonic() < self._end:
            start = time.monotonic()
            try:
                status = client.post(question(number + 1000 * done))
                if status == 200:
                    self.times.append(time.monotonic() - start)
                else:
                    self.failed.append(str(status))
            except (OSError, http.client.HTTPException) as error:
                self.failed.append(repr(error))
                client = Client(self._port)
            done += 1

    def _hostile(self) -> None:
        while time.monotonic() < self._end:
            status: object = "hung up on"
            with contextlib.suppress(OSError, http.client.HTTPException):
                status = random.choice(ATTACKS)(self._port) or "left open"
            self.statuses[str(status)] += 1


MIXED: tuple[Callable[[Client, int], object], ...] = (
    lambda client, i: client.post(question(i)),
    lambda client, i: client.post(question(i)),
    lambda client, i: client.post(user(QUESTION, n=8, temperature=1.5)),
    lambda client, i: client.post(question(i, stream=True)),
    lambda client, i: client.post(user(QUESTION, grace={"budget": 4}, max_tokens=8)),
    lambda client, i: client.post(
        {"prompt": ["a", "b"], "stop": ["e"], "max_tokens": 8}, path="completions"
    ),
    lambda client, i: client.post(
        {"input": [{"question": QUESTION, "response": "Ann"}] * 4}, path="score"
    ),
    lambda client, i: client.post(user(QUESTION * 99)),
    lambda client, i: client.post(user(QUESTION, tools=[1])),
    lambda client, i: client.post(user(QUESTION), key="wrong"),
    lambda client, i: client.get("/metrics"),
)


def resident_mib(running: Running) -> float:
    text = Path(f"/proc/{running.process.pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+)", text)[0]) / 1024


def memory(running: Running, port: int, given: argparse.Namespace) -> Body:
    """Return the server's memory in MiB, read at rest after each 500 mixed requests."""
    clients, statuses = threading.local(), collections.Counter[str]()

    def ask(number: int) -> str:
        try:
            if number % 50 == 49:
                return leave_early(port)
            client = clients.__dict__.setdefault("one", Client(port))
            kind = heavy if number % 60 == 30 else MIXED[number % len(MIXED)]
            return str(kind(client, number))
        except (OSError, http.client.HTTPException) as error:
            clients.__dict__.pop("one", None)
            return type(error).__name__

    sizes: list[float] = []
    with ThreadPoolExecutor(given.clients) as pool:
        for start in range(0, given.requests, STEP):
            statuses.update(pool.map(ask, range(start, min(start + STEP, given.requests))))
            rest(running)
            sizes.append(round(resident_mib(running), 1))
            print(json.dumps({"requests": start + STEP, "mib": sizes[-1]}), flush=True)
    row = {"requests": given.requests, "mib_after_500": sizes[0], "mib_most": max(sizes)}
    row |= {"mib_end": sizes[-1], "grown": round(max(sizes) - sizes[0], 1)}
    return row | {"statuses": dict(statuses)}


def rest(running: Running) -> None:
    """Wait until the server has used next to no processor time for a while: nothing runs on."""
    spent = math.inf
    while (now := processor_s(running)) - spent > 0.05 * REST_S or spent == math.inf:
        spent = now
        time.sleep(REST_S)


def processor_s(running: Running) -> float:
    parts = Path(f"/proc/{running.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")


def heavy(client: Client, _: int) -> int:
    """Ask for many samples after a long prompt."""
    return client.post(user(QUESTION * 40, n=16, max_tokens=4))


def leave_early(port: int) -> str:
    """Ask for many tokens and hang up."""
    raw = written(user("a", n=16, temperature=2))
    with socket.create_connection(("127.0.0.1", port)) as leaving:
        leaving.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(raw) + raw)
        time.sleep(0.05)
    return "left"


def hostile(running: Running, port: int, given: argparse.Namespace) -> Body:
    """Return the latency of honest clients without and with hostile ones."""
    length = given.minutes * 60 / ROUNDS
    Round(port, length / 10, given.clients, hostile=False)  # warms up
    rounds: dict[bool, list[Round]] = {False: [], True: []}
    for _ in range(ROUNDS):
        for bad in (False, True):
            rounds[bad].append(Round(port, length if bad else length / 4, given.clients, bad))
    running.process.send_signal(signal.SIGTERM)
    start = time.monotonic()
    code = running.process.wait(60)
    row: Body = {"clients": given.clients}
    for bad, name in ((False, "without"), (True, "with")):
        times = [each for one in rounds[bad] for each in one.times]
        failed = [each for one in rounds[bad] for each in one.failed]
        row[name] = {
            "answers": len(times),
            "failed": dict(collections.Counter(failed)),
            "median_s": percentile(times, 50),
            "p99_s": percentile(times, 99),
        }
    row["attacks"] = dict(sum((one.statuses for one in rounds[True]), collections.Counter()))
    row["ratio"] = round(row["with"]["p99_s"] / row["without"]["p99_s"], 2)
    return row | {"sigterm_s": round(time.monotonic() - start, 1), "exit_code": code}


def keep_alive(_: Running, port: int, given: argparse.Namespace) -> Body:
    """Return median times on one connection, in milliseconds."""

    def median_ms(work: Callable[[], object], count: int) -> float:
        times = []
        for _ in range(count):
            start = time.perf_counter()
            work()
            times.append(time.perf_counter() - start)
        return round(1000 * statistics.median(times), 1)

    client = Client(port)
    client.post(question(0))
    health = median_ms(lambda: client.get("/health"), 200)
    return {"health_ms": health, "chat_ms": median_ms(lambda: client.post(question(1)), 50)}


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
    kinds = {"memory": memory, "hostile": hostile, "keep-alive": keep_alive}
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=kinds)
    parser.add_argument("--requests", type=int, default=25_000, help="of memory")
    parser.add_argument("--minutes", type=float, default=1, help="with hostile clients")
    parser.add_argument("--clients", type=int, default=64)
    given, port = parser.parse_args(), free_port()
    with tempfile.TemporaryDirectory() as folder, many_files():
        own = own_model(Path(folder))
        with server("grace.cli", [str(own), "--device", "cpu", "--api-key", KEY], port) as running:
            print(json.dumps(kinds[given.kind](running, port, given)))


if __name__ == "__main__":
    main()
