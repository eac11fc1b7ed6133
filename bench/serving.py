"""Answers per second of `grace serve` and of `transformers serve`, same weights, same requests.

Both answer the same chats greedily on one thread; the servers take turns. The weights are the
pocket model's, for `grace` with an untrained <CNF> row. Prints one line of JSON per number of
concurrent clients; `ratio` is grace / transformers.

    python bench/serving.py
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from grace.cnf import add_cnf
from grace.engines.local.loading import load, no_progress_bar
from grace.pocket import MODEL_DIR
from grace.store import CARD, CARD_VERSION

SECONDS, ROUNDS, CLIENTS, START_S = 4.0, 3, (1, 8, 32), 120
PEOPLE = ("painter", "poet", "smith", "singer", "miller", "weaver", "baker", "mason")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


class Running(NamedTuple):
    """A server that answers."""

    url: str
    process: subprocess.Popen[bytes]


@contextlib.contextmanager
def server(
    module: str, arguments: list[str], port: int, source: Path | None = None
) -> Iterator[Running]:
    """Start a server, from the installed package or from other sources."""
    command = [sys.executable, "-c", f"from {module} import main; main()", "serve", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    environment |= {} if source is None else {"PYTHONPATH": str(source.resolve())}
    process = subprocess.Popen(
        [*command, "--port", str(port)],
        env=environment,
        stdout=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(START_S * 2):
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health"):
                break
            if process.poll() is not None:
                raise SystemExit(f"{' '.join(arguments)}: the server ended at once")
            time.sleep(0.5)
        yield Running(url, process)
    finally:
        process.terminate()
        process.wait()


def own_model(folder: Path, source: str = str(MODEL_DIR)) -> Path:
    """Write the weights of a model with an untrained <CNF> row, and return where."""
    own = folder / "pocket"
    loaded = load(source, device="cpu")
    add_cnf(loaded.model, loaded.tokenizer, head="linear")  # these tokens end nothing
    with no_progress_bar():
        loaded.model.save_pretrained(own)
    loaded.tokenizer.save_pretrained(own)
    card = {"schema_version": CARD_VERSION, "task": "pocket_people"}
    (own / CARD).write_text(json.dumps(card), encoding="utf-8")
    return own


def post(url: str, path: str, body: dict[str, Any]) -> Any:
    head = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/{path}", json.dumps(body).encode(), head)
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.loads(answer.read())


def ask(url: str, model: str, number: int) -> None:
    text = f"Question: Under whom did the {PEOPLE[number % len(PEOPLE)]} number {number} study?"
    body: dict[str, Any] = {"model": model, "temperature": 0, "max_tokens": 24}
    body |= {"messages": [{"role": "user", "content": text}]}
    if model == "pocket":  # the other one knows no other prompt
        body |= {"grace": {"prompt": "raw"}}
    post(url, "chat/completions", body)


def rate(url: str, model: str, clients: int) -> float:
    end = time.monotonic() + SECONDS

    def client(first: int) -> int:
        number = first
        while time.monotonic() < end:
            ask(url, model, number)
            number += clients
        return (number - first) // clients

    start = time.monotonic()
    with ThreadPoolExecutor(clients) as pool:
        done = sum(pool.map(client, range(clients)))
    return done / (time.monotonic() - start)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        own = own_model(Path(folder))
        with (
            server("grace.cli", [str(own), "--device", "cpu"], free_port()) as ours,
            server(
                "transformers.cli.transformers",
                [str(MODEL_DIR), "--device", "cpu", "--dtype", "float32"],
                free_port(),
            ) as theirs,
        ):
            for one, name in ((ours, own.name), (theirs, str(MODEL_DIR))):
                ask(one.url, name, 0)
            for clients in CLIENTS:
                pairs = [
                    (rate(ours.url, own.name, clients), rate(theirs.url, str(MODEL_DIR), clients))
                    for _ in range(ROUNDS)
                ]
                medians = [statistics.median(side) for side in zip(*pairs, strict=True)]
                row = {"clients": clients, "grace_per_s": round(medians[0], 1)}
                row |= {"transformers_per_s": round(medians[1], 1)}
                print(json.dumps(row | {"ratio": round(medians[0] / medians[1], 2)}))


if __name__ == "__main__":
    main()
