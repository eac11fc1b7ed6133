"""The cost of the confidence while generating, and the saving of one prefill for n samples.

Each ratio is measured in one run, in which the two sides take turns:

- tokens per second with confidence / without, greedy and sampled, the same responses;
- with `--traced`, a finished run with `grace.trace=true`: with c at every token / at the end only;
- eight separate calls / one call for n = 8 samples per question, in seconds;
- with `--uneven T`, samples at a temperature at which their lengths differ a lot: tokens per second
  of rows that are replaced as soon as they end / of batches that wait for their longest row.
  `--side` draws one of the two, and prints the most memory that this process took.

    python bench/generation.py
    python bench/generation.py --uneven 3 --max-new-tokens 256 --rounds 3
    python bench/generation.py --model DIR --questions FILE.jsonl
    python bench/generation.py --traced RUN
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import dataclasses
import functools
import resource
import statistics
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from keeping import add_keep, figure
from timing import in_turns

import grace
from grace.chat import encode_chat
from grace.cnf import add_cnf
from grace.engines import Sampling, transformers
from grace.engines.gguf import resolve_model
from grace.engines.local.loading import head_in_float32
from grace.engines.transformers import TransformersEngine
from grace.pocket import QUESTIONS
from grace.store.inputs import read_rows


def engines(path: str) -> tuple[TransformersEngine, TransformersEngine]:
    """Return a model with the rows that are read, and without; they give the same responses."""
    with_it, without = TransformersEngine.load(path), TransformersEngine.load(path)
    add_cnf(with_it.model, with_it.tokenizer, head="linear")
    if with_it.model.dtype != torch.float32:
        head_in_float32(with_it.model)  # as loading does, which knew no rows yet
    return TransformersEngine(with_it.model, with_it.tokenizer), without


def traced(run: Path) -> tuple[TransformersEngine, TransformersEngine]:
    """Return the model of a run with its trace, and without."""
    with_it = grace.load(run).engine
    without = copy.copy(with_it)
    evidence = dataclasses.replace(with_it.evidence, trace=None)
    without.reader = dataclasses.replace(with_it.reader, evidence=evidence)
    return with_it, without


def questions(path: Path | None, count: int) -> list[str]:
    """Return questions from a file, by default those of the pocket."""
    rows = read_rows(path or QUESTIONS / "pocket_people" / "test.parquet", 0, count)
    return [row.fields["question"] for row in rows]


def tokens_of(engine: TransformersEngine, prompts: list[list[int]], sampling: Sampling) -> int:
    """Generate, and count the tokens of all responses, their ends included."""
    return sum(
        len(generation.token_ids) + 1
        for _, generations in engine.generate(prompts, sampling)
        for generation in generations
    )


def with_and_without(
    pair: tuple[TransformersEngine, TransformersEngine],
    texts: list[str],
    rounds: int,
    sampling: Sampling,
) -> list[float]:
    """Return tokens per second of the one over the other, in each of the paired rounds."""
    prompts = [
        [encode_chat(e.tokenizer, [{"role": "user", "content": text}]) for text in texts]
        for e in pair
    ]
    work = [
        functools.partial(tokens_of, engine, asked, sampling)
        for engine, asked in zip(pair, prompts, strict=True)
    ]
    sides = list(zip(*in_turns(*work, rounds=rounds), strict=True))
    assert all(a.result == b.result for a, b in sides), "both must write as many tokens"
    return [b.processor / a.processor for a, b in sides]


def one_call_for_eight(path: str, texts: list[str], rounds: int, longest: int) -> list[float]:
    """Return the seconds of eight calls with one sample each over one call with eight."""
    engine = TransformersEngine.load(path)
    prompts = [encode_chat(engine.tokenizer, [{"role": "user", "content": t}]) for t in texts]
    together = Sampling(8, 0.8, 1.0, longest)
    alone = [Sampling(1, 0.8, 1.0, longest, first_sample=k) for k in range(8)]

    def separately() -> int:
        return sum(tokens_of(engine, [p], s) for p in prompts for s in alone)

    def at_once() -> int:
        return sum(tokens_of(engine, [p], together) for p in prompts)

    slow, fast = in_turns(separately, at_once, rounds=rounds)
    pairs = list(zip(slow, fast, strict=True))
    assert all(a.result == b.result for a, b in pairs), "the two ways must give the same answers"
    return [a.processor / b.processor for a, b in pairs]


@contextlib.contextmanager
def batch_by_batch() -> Iterator[None]:
    """Make units of work as large as a batch, so that no row takes the place of another."""
    usual, transformers.ROWS_TO_COME = transformers.ROWS_TO_COME, {"cpu": 1, "cuda": 1}
    yield
    transformers.ROWS_TO_COME = usual


def uneven(
    path: str, texts: list[str], rounds: int, sampling: Sampling, side: str, kept: Path | None
) -> None:
    """Print tokens per second of the two ways to draw samples of different lengths."""
    engine, _ = engines(path)
    prompts = [encode_chat(engine.tokenizer, [{"role": "user", "content": t}]) for t in texts]

    def drawn() -> dict[int, list[tuple[int, ...]]]:
        made = engine.generate(prompts, sampling)
        return {index: [one.token_ids for one in several] for index, several in made}

    def in_batches() -> dict[int, list[tuple[int, ...]]]:
        with batch_by_batch():
            return drawn()

    sides = {"replaced": drawn, "batches": in_batches}
    if side:
        sides[side]()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        print(f"{side}: {peak:.2f} GB at most")
        return
    fast, slow = in_turns(*sides.values(), rounds=rounds, warm=0)
    lengths = [len(tokens) + 1 for several in fast[0].result.values() for tokens in several]
    alike = sum(fast[0].result[i] == slow[0].result[i] for i in fast[0].result)
    tenths = np.quantile(lengths, (0.1, 0.5, 0.9, 1)).astype(int).tolist()
    speed = statistics.median(sum(lengths) / one.processor for one in fast)
    ratios = [b.processor / a.processor for a, b in zip(fast, slow, strict=True)]
    print(
        f"{len(lengths)} samples of {np.mean(lengths):.0f} tokens (10, 50, 90, 100 %: {tenths}); "
        f"the same ones for {alike} of {len(prompts)} questions\n"
        f"rows replaced: {speed:.0f} tokens/s"
    )
    figure("tokens/s, rows replaced / whole batches", ratios, kept)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="pocket")
    parser.add_argument("--questions", type=Path)
    parser.add_argument("--traced", type=Path, metavar="RUN")
    parser.add_argument("--count", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--max-new-tokens", type=int, default=32)
    parser.add_argument("--uneven", type=float, metavar="T", help="temperature of uneven samples")
    parser.add_argument("--side", choices=("replaced", "batches"), default="")
    add_keep(parser)
    arguments = parser.parse_args()
    path, longest = resolve_model(arguments.model), arguments.max_new_tokens
    texts = [
        f"Question: {text}\nGuess:" for text in questions(arguments.questions, arguments.count)
    ]
    if arguments.uneven:
        sampling = Sampling(4, arguments.uneven, 1.0, longest)
        uneven(path, texts, arguments.rounds, sampling, arguments.side, arguments.keep)
        return
    for name, sampling in (
        ("greedy", Sampling(1, 0.0, 1.0, longest)),
        ("T 0.8, n = 8", Sampling(8, 0.8, 1.0, longest)),
    ):
        ratios = with_and_without(engines(path), texts, arguments.rounds, sampling)
        figure(f"tokens/s with confidence / without, {name}", ratios, arguments.keep)
        if arguments.traced:
            ratios = with_and_without(traced(arguments.traced), texts, arguments.rounds, sampling)
            figure(f"tokens/s with a trace / without, {name}", ratios, arguments.keep)
    ratios = one_call_for_eight(path, texts[:16], arguments.rounds, longest)
    figure("eight calls / one call for n = 8, seconds", ratios, arguments.keep)


if __name__ == "__main__":
    main()
