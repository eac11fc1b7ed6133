"""The saving of reading the examples that all prompts begin with only once.

Prints questions per second with the shared prefix / without, measured in one run in which the sides
take turns, for sampling, for scoring responses, for their features and for training steps; the
responses must be the same. Also prints sampling with room in the KV cache / with a KV cache that is
copied at every step, scoring with the logits of a few positions at a time / of all positions of a
batch, and rating answers whose log-probabilities are known, with the logits of a few tokens / of
all tokens and positions. `--vocabulary` adds random rows, and answers of random tokens and lengths
are scored.

    python bench/prefix.py
    python bench/prefix.py --only chunks --vocabulary 151936 --max-new-tokens 256
    python bench/prefix.py --model DIR --questions FILE.jsonl --template "{question}"
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from keeping import add_keep, figure
from timing import in_turns
from transformers.cache_utils import DynamicLayer

from grace.chat import encode_chat
from grace.cnf import add_cnf
from grace.config import DataSettings, PaperSettings
from grace.engines import Known, Sampling
from grace.engines.gguf import resolve_model
from grace.engines.local import forward
from grace.engines.local.cache import RoomyLayer
from grace.engines.reading import stop_ids
from grace.engines.transformers import TransformersEngine
from grace.evidence import Evidence
from grace.methods.paper.examples import Example, collate
from grace.methods.paper.lora import add_lora
from grace.methods.paper.loss import losses
from grace.pocket import QUESTIONS
from grace.records import Question
from grace.tasks import load_task
from grace.tasks.prompts import conversation
from grace.tasks.values import parse, question_rows


def questions(path: Path | None, count: int) -> list[Question]:
    """Return the first questions of a file, by default those of the pocket."""
    data = DataSettings()
    source = path or QUESTIONS / "pocket_people" / "test.parquet"
    return [parse(row, data) for row in question_rows(source, data, 0, count)]


@contextlib.contextmanager
def without(what: str, engine: TransformersEngine) -> Iterator[None]:
    """Turn off the shared prefix, the room in the KV cache, or the head in chunks of positions."""
    every = engine.forward, "apart", False
    switches: dict[str, list[tuple[Any, str, Any]]] = {
        "prefix": [(forward, "SHORTEST", 10**9)],
        "room": [(RoomyLayer, "update", DynamicLayer.update)],
        "chunks": [every],
        "known": [every, (engine.forward, "reads_few", False)],
    }
    usual = [(place, name, getattr(place, name)) for place, name, _ in switches[what]]
    for place, name, off in switches[what]:
        setattr(place, name, off)
    yield
    for place, name, value in usual:
        setattr(place, name, value)


def ratio(
    work: Callable[[], Any], count: int, rounds: int, what: str, engine: TransformersEngine
) -> tuple[float, list[float]]:
    """Return the questions per second with `what`, and in each round the ratio to those without."""

    def slowly() -> None:
        with without(what, engine):
            work()

    fast, slow = (
        [one.processor for one in side] for side in in_turns(work, slowly, rounds=rounds, warm=0)
    )
    ratios = [b / a for a, b in zip(fast, slow, strict=True)]
    return statistics.median(count / one for one in fast), ratios


def check(engine: TransformersEngine, prompts: list[list[int]], sampling: Sampling) -> Any:
    """Return the responses, which must be the same either way, and c within 1e-5."""
    fast = [made for _, (made,) in sorted(engine.generate(prompts, sampling))]
    with without("prefix", engine), without("room", engine):
        slow = [made for _, (made,) in sorted(engine.generate(prompts, sampling))]
    assert [made.token_ids for made in fast] == [made.token_ids for made in slow], "other tokens"
    pairs = zip(fast, slow, strict=True)
    apart = [abs(a.confidence - b.confidence) for a, b in pairs if a.confidence is not None]
    print(f"same tokens; c differs by at most {max(apart, default=0):.1e}")
    return [made.token_ids for made in fast]


def random_answers(vocabulary: int, count: int, longest: int) -> list[list[int]]:
    """Return answers of random tokens, whose lengths differ as those of real ones do."""
    draw = np.random.default_rng(0)
    lengths = np.exp(draw.uniform(0, np.log(longest), count)).astype(int)
    return [draw.integers(0, vocabulary, n).tolist() for n in lengths]


def training(path: str, prompts: Any, responses: Any) -> Any:
    """Return a function that trains LoRA and `<CNF>` on the responses for one epoch."""
    settings, made = PaperSettings(), TransformersEngine.load(path)
    cnf = add_cnf(made.model, made.tokenizer)
    peft_model = add_lora(made.model, cnf, settings).train()
    trained = [parameter for parameter in peft_model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-6)
    rows = [
        Example(str(n), tuple(prompt), tuple(response), 0.5)
        for n, (prompt, response) in enumerate(zip(prompts, responses, strict=True))
    ]

    def epoch() -> None:
        for start in range(0, len(rows), settings.batch_size):
            batch = collate(rows[start : start + settings.batch_size], cnf.readout, 0)
            terms = losses(peft_model, batch, cnf.readout)
            (terms.calibration + 0.1 * terms.sft).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    return epoch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="pocket")
    parser.add_argument("--questions", type=Path)
    parser.add_argument("--template", default="")
    parser.add_argument("--shots", type=int, default=5)
    parser.add_argument("--count", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-new-tokens", type=int, default=16)
    parser.add_argument("--vocabulary", type=int, help="rows of the vocabulary, random ones added")
    parser.add_argument("--only", nargs="+", help="what to measure; default: everything")
    add_keep(parser)
    arguments = parser.parse_args()
    path = resolve_model(arguments.model)
    made = TransformersEngine.load(path)
    if arguments.vocabulary:
        made.model.resize_token_embeddings(arguments.vocabulary, mean_resizing=False)
    cnf = add_cnf(made.model, made.tokenizer, head="linear")
    rows = made.model.get_output_embeddings().weight.data
    rows[list(cnf.readout.ids)] += rows.std() * torch.randn(4, rows.shape[1])
    stops = stop_ids(made.tokenizer, ["\n"])
    evidence = Evidence((0.1, -0.2, 0.01, 0.1, 0.2, -0.1, 1.2), (0.0,) * 7)
    engine = TransformersEngine(made.model, made.tokenizer, evidence=evidence, stops=stops)
    asked_for = questions(arguments.questions, arguments.shots + arguments.count)
    shots, asked = asked_for[: arguments.shots], asked_for[arguments.shots :]
    data, task = DataSettings(prompt="text", template=arguments.template), load_task("jsonl")
    chats = [conversation(task, question, data, shots) for question in asked]
    prompts = [encode_chat(engine.tokenizer, chat) for chat in chats]
    sampling = Sampling(max_new_tokens=arguments.max_new_tokens)
    if arguments.vocabulary:
        responses = random_answers(arguments.vocabulary, len(prompts), arguments.max_new_tokens)
    else:
        responses = check(engine, prompts, sampling)
    drawn = engine.logprobs(prompts, responses)
    known = [Known(logprobs, end) for logprobs, end in drawn]
    rated = (engine.rated(prompts, responses, some) for some in (known, ()))
    apart = [abs(a.confidence - b.confidence) for a, b in zip(*rated, strict=True)]
    print(f"c with known log-probabilities differs by at most {max(apart):.1e}")
    lengths = [np.mean(list(map(len, some))) for some in (prompts, responses)]
    print(
        f"{lengths[0]:.0f} tokens a prompt, {forward.shared(prompts)} shared; {lengths[1]:.1f} said"
    )
    for name, what, make in (
        ("sampling", "prefix", lambda: lambda: list(engine.generate(prompts, sampling))),
        ("sampling", "room", lambda: lambda: list(engine.generate(prompts, sampling))),
        ("scoring", "prefix", lambda: lambda: engine.confidences(prompts, responses)),
        ("log-probabilities", "prefix", lambda: lambda: engine.logprobs(prompts, responses)),
        ("chunks", "chunks", lambda: lambda: engine.logprobs(prompts, responses)),
        ("rating", "known", lambda: lambda: engine.rated(prompts, responses, known)),
        ("features", "prefix", lambda: lambda: engine.features(prompts, responses)),
        ("training", "prefix", lambda: training(path, prompts, responses)),
    ):
        if arguments.only and name not in arguments.only:
            continue
        work = make()
        speed, times = ratio(work, len(prompts), arguments.rounds, what, engine)
        print(f"{name}: {speed:.1f} questions/s")
        figure(f"{name}: questions/s / those without {what}", times, arguments.keep)


if __name__ == "__main__":
    main()
