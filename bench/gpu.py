"""The engine on a GPU: in order of worth, within --minutes, and resumable.

    python bench/gpu.py MODEL DIR --data FOLDER --minutes 12

MODEL is a directory or GGUF file, which computes in bfloat16; FOLDER holds TASK/SPLIT.jsonl of
arc_challenge and math_qa. Each figure is printed and added to DIR/figures.json as soon as it is
there, and is not measured again:

- tokens/s of sampling with 512 rows in flight and with as many as there are by default, and of
  transformers' own `generate` with the prompts of 512;
- stored answers rated per second: with their log-probabilities known, and without;
- tokens/s with the confidence / without, the same prompts;
- then, side by side, since one computes on the processor while another samples, runs of
  ARC-Challenge and MathQA in DIR/runs: the fit, votes over 8 samples, the paper's method. They go
  on with `grace run DIR/runs`; `--set` changes their settings.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from generation import engines

from grace.chat import encode_chat
from grace.config import DataSettings, shipped_recipes
from grace.engines import Known, Sampling
from grace.engines.gguf import resolve_model
from grace.engines.transformers import TransformersEngine
from grace.evidence import Evidence
from grace.pipeline.scaling import ScaleSettings, replay_run
from grace.pipeline.study import resolve_study, run_study
from grace.strategies import BUDGET
from grace.tasks import load_task
from grace.tasks.prompts import conversation

TASKS = ("arc_challenge", "math_qa")
SHORT = 96  # tokens of the answers that are written with and without the confidence
SHORTEST_S = 45.0  # what is not begun with less time left


def prompts_of(engine: TransformersEngine, folder: str, count: int) -> list[list[int]]:
    """Return the prompts of test questions of ARC-Challenge, the paper's."""
    task, data = load_task(TASKS[0]), DataSettings(task=TASKS[0], dir=folder, test=count)
    chats = [conversation(task, one, data, []) for one in task.questions("test", data, 0)]
    return [encode_chat(engine.tokenizer, chat) for chat in chats]


def sampled(engine: TransformersEngine, prompts: list[list[int]], sampling: Sampling) -> Any:
    """Return the samples by prompt, and tokens per second."""
    start = time.perf_counter()
    made = dict(engine.generate(prompts, sampling))
    seconds = time.perf_counter() - start
    tokens = sum(len(one.token_ids) + 1 for several in made.values() for one in several)
    return [made[index] for index in range(len(prompts))], tokens / seconds


def by_transformers(
    engine: TransformersEngine, prompts: list[list[int]], sampling: Sampling
) -> float:
    """Return the tokens per second of transformers' `generate`, in one left-padded batch."""
    longest = max(map(len, prompts))
    ids = [[engine.reader.eos[0]] * (longest - len(one)) + one for one in prompts]
    mask = [[0] * (longest - len(one)) + [1] * len(one) for one in prompts]
    start = time.perf_counter()
    made = engine.model.generate(
        torch.tensor(ids, device=engine.device),
        attention_mask=torch.tensor(mask, device=engine.device),
        do_sample=True,
        temperature=sampling.temperature,
        top_k=0,
        max_new_tokens=sampling.max_new_tokens,
        pad_token_id=engine.reader.eos[0],
    )[:, longest:]
    ended = torch.isin(made, torch.tensor(engine.reader.eos, device=made.device))
    counts = torch.where(ended.any(1), ended.int().argmax(1) + 1, made.shape[1])
    return int(counts.sum()) / (time.perf_counter() - start)


def rated(engine: TransformersEngine, asked: Any, samples: Any, *, known: bool) -> float:
    """Return the stored answers that get their confidence per second, as if all had ended."""
    pairs = [
        (prompt, one) for prompt, several in zip(asked, samples, strict=True) for one in several
    ]
    texts = [one.token_ids for _, one in pairs]
    stored = [Known(one.logprobs, one.end_logprob or 0.0) for _, one in pairs] if known else []
    start = time.perf_counter()
    engine.rated([prompt for prompt, _ in pairs], texts, stored)
    return len(pairs) / (time.perf_counter() - start)


class Figures:
    """The figures so far, kept in a file, and the time that is left."""

    def __init__(self, path: Path, minutes: float) -> None:
        self._path, self._end = path, time.monotonic() + 60 * minutes
        self.found = json.loads(path.read_text()) if path.exists() else {}

    @property
    def left_s(self) -> float:
        """The seconds that are left."""
        return self._end - time.monotonic()

    def add(self, name: str, measure: Callable[[], float]) -> None:
        """Measure a figure, unless it is there or the time is over; an error is shown."""
        if name in self.found or self.left_s < SHORTEST_S:
            return
        try:
            self.found[name] = round(measure(), 3)
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
            return
        self._path.write_text(json.dumps(self.found, indent=1))
        print(f"{name}: {self.found[name]}", flush=True)


@contextlib.contextmanager
def rows_in_flight(engine: TransformersEngine, rows: int) -> Iterator[None]:
    """Sample so many rows side by side."""
    usual, engine.batch_size = engine.batch_size, rows
    yield
    engine.batch_size = usual


def measure(figures: Figures, model: str, folder: str, rows: int, longest: int) -> None:
    """Measure what the engine does with ARC-Challenge."""
    pair = engines(model)
    engine, without = pair
    rating = TransformersEngine(engine.model, engine.tokenizer, evidence=Evidence.none())
    prompts = prompts_of(engine, folder, engine.batch_size // 2)
    several = Sampling(3, 0.8, 1.0, longest)
    one, short = Sampling(1, 0.8, 1.0, longest), Sampling(1, 0.8, 1.0, SHORT)
    kept: list[Any] = []

    def sampling(rows: int) -> float:
        with rows_in_flight(engine, rows):
            samples, speed = sampled(engine, prompts[:rows], several)
        kept.append(samples)
        return float(speed)

    def rating_of(known: bool) -> float:
        if not kept:
            kept.append(sampled(engine, prompts[:rows], one)[0])
        return rated(rating, prompts[: len(kept[0])], kept[0], known=known)

    def cost() -> float:
        speeds = [[sampled(each, prompts[:rows], short)[1] for each in pair] for _ in range(3)]
        return statistics.median(with_it / alone for with_it, alone in speeds)

    figures.add(f"tokens/s, {rows} rows", lambda: sampling(rows))
    figures.add("rated answers/s, log-probabilities known", lambda: rating_of(True))
    figures.add("rated answers/s", lambda: rating_of(False))
    figures.add("tokens/s with c / without", cost)
    figures.add("tokens/s of generate()", lambda: by_transformers(without, prompts[:rows], short))
    figures.add(f"tokens/s, {engine.batch_size} rows", lambda: sampling(engine.batch_size))
    if torch.cuda.is_available():
        figures.add("most memory, GB", lambda: torch.cuda.max_memory_allocated() / 1e9)


def run_all(out: Path, overrides: list[str]) -> None:
    """Fit a confidence on each task, vote over samples, and train by the paper's method."""
    study = resolve_study(out, shipped_recipes()["real/qwen2.5-coder"], overrides)
    settings = dataclasses.replace(study.settings, variant={"grace-paper": {"method": "paper"}})
    votes = partial(replay_run, chosen=ScaleSettings(samples=BUDGET))
    run_study(out, study._replace(settings=settings), jobs=len(TASKS), scored=votes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", required=True, help="folder with TASK/SPLIT.jsonl")
    parser.add_argument("--minutes", type=float, default=12)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--max-new-tokens", type=int, default=320)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--only-runs", action="store_true", help="measure no figures")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.only_runs:
        named = [f"model.path={arguments.model}", "model.dtype=bfloat16"]
        run_all(arguments.out / "runs", [*named, f"data.dir={arguments.data}", *arguments.set])
        return
    figures = Figures(arguments.out / "figures.json", arguments.minutes)
    model, longest = resolve_model(arguments.model, "bfloat16"), arguments.max_new_tokens
    measure(figures, model, arguments.data, arguments.rows, longest)
    gc.collect()
    torch.cuda.empty_cache()
    if figures.left_s < SHORTEST_S:
        print("no time left for the runs")
        return
    with contextlib.suppress(subprocess.TimeoutExpired):
        again = [sys.executable, __file__, *sys.argv[1:], "--only-runs"]
        subprocess.run(again, timeout=figures.left_s, check=False)


if __name__ == "__main__":
    main()
