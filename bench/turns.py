"""`grace serve` where requests differ: in their settings, and a cheap one beside a large one.

The weights are those of `serving.py`. Prints one line of JSON: answers per second of 16 clients
who all ask alike, with a length and a seed of their own each, and the seconds of one short answer
alone and while somebody else has asked eight times for 64 samples.

    python bench/turns.py
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from serving import free_port, own_model, post, server

SECONDS, ROUNDS, CLIENTS = 6.0, 3, 16
LARGE_ONES = 8
LARGE = {"n": 64, "max_tokens": 480, "temperature": 2.0}


def complete(url: str, **options: Any) -> None:
    post(url, "completions", {"model": "pocket", "prompt": "Under whom did", **options})


def rate(url: str, *, own_settings: bool) -> float:
    end = time.monotonic() + SECONDS

    def client(number: int) -> int:
        done = 0
        own = {"max_tokens": 16 + number, "seed": number}
        options = own if own_settings else {"max_tokens": 24}
        while time.monotonic() < end:
            complete(url, **options)
            done += 1
        return done

    start = time.monotonic()
    with ThreadPoolExecutor(CLIENTS) as pool:
        done = sum(pool.map(client, range(CLIENTS)))
    return done / (time.monotonic() - start)


def seconds(url: str) -> float:
    start = time.monotonic()
    complete(url, max_tokens=8, temperature=0)
    return time.monotonic() - start


def beside(url: str) -> tuple[float, float]:
    """Return the seconds of a cheap request beside large ones, and of those."""
    start = time.monotonic()
    with ThreadPoolExecutor(LARGE_ONES) as pool:
        large = [pool.submit(complete, url, **LARGE) for _ in range(LARGE_ONES)]
        time.sleep(0.5)
        cheap = seconds(url)
        for one in large:
            one.result()
    return cheap, time.monotonic() - start


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        own = own_model(Path(folder))
        with server("grace.cli", [str(own), "--device", "cpu"], free_port()) as running:
            seconds(running.url)
            rates = [(rate(running.url, own_settings=False), rate(running.url, own_settings=True))
                     for _ in range(ROUNDS)]  # fmt: skip
            alike, mixed = (statistics.median(side) for side in zip(*rates, strict=True))
            alone = statistics.median(seconds(running.url) for _ in range(ROUNDS))
            cheap, large = (
                statistics.median(side)
                for side in zip(*(beside(running.url) for _ in range(ROUNDS)), strict=True)
            )
    row = {"alike_per_s": alike, "mixed_per_s": mixed, "alone_s": alone}
    row |= {"beside_s": cheap, "large_s": large}
    print(json.dumps({name: round(value, 2) for name, value in row.items()}))


if __name__ == "__main__":
    main()
