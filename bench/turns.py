"""`grace serve` where requests differ: in their settings, and cheap ones beside long or large ones.

The weights are those of `serving.py`, or `--model`. Prints one line of JSON: answers per second of
16 clients who all ask alike, with a length and a seed of their own each, and the seconds of one
short answer alone and while somebody else has asked eight times for 64 samples.

With `--other SRC`, the folder `src` of another version, the two take turns instead: eight clients
ask for answers of 40 to 240 tokens each, and another now and then for 8 tokens. Prints the median
and the 99th percentile of the seconds of the short answers and the tokens per second of the long
ones, this version / the other. These seconds are processor time of the server, so that other
programs do not count.

    python bench/turns.py
    python bench/turns.py --model FILE.gguf --other ../before/src
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from serving import MODEL_DIR, Running, free_port, own_model, post, server

from grace.engines.gguf import resolve_model

SECONDS, ROUNDS, CLIENTS = 6.0, 3, 16
LARGE_ONES = 8
LARGE = {"n": 64, "max_tokens": 480, "temperature": 2.0}
LONG_ONES, LONG_S, PAUSE_S = 8, 8.0, 0.1


def complete(url: str, **options: Any) -> int:
    """Ask, and return the number of tokens of the answer."""
    body = {"model": "pocket", "prompt": "Under whom did", **options}
    return int(post(url, "completions", body)["usage"]["completion_tokens"])


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


def processor(running: Running) -> float:
    """Return the processor seconds of a server so far (Linux)."""
    text = Path(f"/proc/{running.process.pid}/stat").read_text(encoding="ascii")
    return sum(map(int, text.rpartition(")")[2].split()[11:13])) / os.sysconf("SC_CLK_TCK")


def short_beside_long(running: Running) -> tuple[list[float], float]:
    """Return the seconds of each short answer, and the tokens per second of the long ones."""
    begun = processor(running)

    def long(number: int) -> int:
        chance, tokens = random.Random(number), 0
        while processor(running) < begun + LONG_S:
            longest, seed = chance.randint(40, 240), chance.randrange(2**31)
            tokens += complete(running.url, max_tokens=longest, seed=seed, temperature=2.0)
        return tokens

    with ThreadPoolExecutor(LONG_ONES) as pool:
        asked = [pool.submit(long, number) for number in range(LONG_ONES)]
        taken, chance = [], random.Random(0)
        while processor(running) < begun + LONG_S:
            due = processor(running) + chance.expovariate(1 / PAUSE_S)
            while processor(running) < min(due, begun + LONG_S):
                time.sleep(0.02)
            start = processor(running)
            complete(running.url, max_tokens=8, temperature=0)
            taken.append(processor(running) - start)
        tokens = sum(one.result() for one in asked)
    return taken, tokens / (processor(running) - begun)


def against(own: Path, other: Path) -> dict[str, float]:
    """Return how short answers beside long ones fare in this version and in another."""
    sides = list[tuple[list[float], float]](), list[tuple[list[float], float]]()
    arguments = [str(own), "--device", "cpu"]
    with (
        server("grace.cli", arguments, free_port()) as new,
        server("grace.cli", arguments, free_port(), other) as old,
    ):
        for number in range(ROUNDS):
            pairs = list(zip((new, old), sides, strict=True))
            for running, side in pairs if number % 2 else reversed(pairs):
                seconds(running.url)
                side.append(short_beside_long(running))
    row: dict[str, float] = {}
    for name, side in zip(("this", "other"), sides, strict=True):
        taken = [one for several, _ in side for one in several]
        row |= {f"{name}_{p}_s": float(np.quantile(taken, p / 100)) for p in (50, 99)}
        row |= {f"{name}_per_s": statistics.median(rate for _, rate in side)}
    ratios = {f"ratio_{what}": row[f"this_{what}"] / row[f"other_{what}"] for what in
              ("50_s", "99_s", "per_s")}  # fmt: skip
    return row | ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default=str(MODEL_DIR))
    parser.add_argument("--other", type=Path, metavar="SRC")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        own = own_model(Path(folder), resolve_model(arguments.model))
        if arguments.other:
            row = against(own, arguments.other)
            print(json.dumps({name: round(value, 2) for name, value in row.items()}))
            return
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
