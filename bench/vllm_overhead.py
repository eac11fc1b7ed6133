"""The cost of the confidence in vLLM, in tokens per second of the same run.

Two kinds of request take turns, each pair in random order. First `plain` requests only tokens, and
`asked` also the log-probabilities of EOS and the tokens that are read at every step, as
`grace.engines.vllm` does; then the engine computes c `at the end` only, or `along` the answer too.
Prints the median over the pairs of the ratio of their seconds, with a bootstrap interval: by the
clock, and of the processor, which other jobs on the machine disturb less.

    .venv-vllm/bin/python bench/vllm_overhead.py [MODEL] [--pairs 100]

MODEL is a merged export; without it, a random model of SmolLM2-135M's shape is made.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from timing import in_turns

from grace.engines import Sampling
from grace.evidence import Evidence

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
TOKENS = 16


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?")
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--rows", type=int, default=16, help="requests in flight")
    options = parser.parse_args()
    if importlib.util.find_spec("vllm") is None:
        print("vLLM is not installed here; make .venv-vllm/.ready, then use .venv-vllm/bin/python")
        return
    with tempfile.TemporaryDirectory() as folder:
        model = Path(options.model) if options.model else write_model(Path(folder))
        measure(model, options.pairs, options.rows)


def write_model(folder: Path) -> Path:
    import torch
    import transformers

    import tiny_models
    from grace.cnf import add_cnf

    tokenizer = tiny_models.tokenizer()
    config = transformers.LlamaConfig(
        vocab_size=49_152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=512,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config)
    add_cnf(model, tokenizer, head="linear")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def measure(model: Path, pairs: int, rows: int) -> None:
    import vllm

    from grace.engines.vllm import VllmEngine, start
    from vllm_models import EVIDENCE, TRACE

    llm, _ = start(
        str(model),
        model,
        "auto",
        {"max_model_len": 512, "max_num_seqs": rows, "enforce_eager": True},
        lora=False,
    )
    engine = VllmEngine(llm, llm.get_tokenizer())
    asked = {"logprob_token_ids": [*engine.reader.requested]}
    dice = random.Random(0)
    print(f"vLLM {vllm.__version__}, {model.name}, {rows} requests of {TOKENS} tokens")
    compare(
        {
            "plain": lambda: run(llm, requests(rows, dice), {}),
            "asked": lambda: run(llm, requests(rows, dice), asked),
        },
        pairs,
        rows,
    )
    along = dataclasses.replace(EVIDENCE, trace=TRACE)
    compare(
        {
            "at the end": lambda: answer(engine, requests(rows, dice), EVIDENCE),
            "along": lambda: answer(engine, requests(rows, dice), along),
        },
        pairs,
        rows,
    )


def compare(ways: dict[str, Callable[[], None]], pairs: int, rows: int) -> None:
    """Print how much longer the second way takes than the first."""
    taken = in_turns(*ways.values(), rounds=pairs)
    print(" against ".join(reversed(ways)), f"({pairs} pairs)")
    for kind in ("clock", "processor"):
        first, second = ([getattr(one, kind) for one in found] for found in taken)
        ratios = [b / a for a, b in zip(first, second, strict=True)]
        low, high = interval(ratios)
        speeds = [rows * TOKENS / statistics.median(values) for values in (first, second)]
        print(
            f"{kind}: {speeds[0]:.0f} and {speeds[1]:.0f} tokens/s, overhead "
            f"{percent(statistics.median(ratios))}% [{percent(low)}, {percent(high)}]"
        )


def percent(ratio: float) -> str:
    return f"{(ratio - 1) * 100:+.2f}"


def requests(rows: int, dice: random.Random) -> list[dict[str, Any]]:
    """Return prompts of 24 random tokens: none is in the prefix cache."""
    return [{"prompt_token_ids": [dice.randrange(6, 250) for _ in range(24)]} for _ in range(rows)]


def run(llm: Any, prompts: list[dict[str, Any]], more: dict[str, Any]) -> None:
    """Sample `TOKENS` tokens of every prompt."""
    from vllm import SamplingParams

    params = SamplingParams(
        temperature=0.8, max_tokens=TOKENS, ignore_eos=True, detokenize=False, seed=None, **more
    )
    llm.generate(prompts, params, use_tqdm=False)


def answer(engine: Any, prompts: list[dict[str, Any]], evidence: Evidence) -> None:
    """Sample an answer of at most `TOKENS` tokens to every prompt, with its confidence."""
    engine.reader = dataclasses.replace(engine.reader, evidence=evidence)
    ids = [prompt["prompt_token_ids"] for prompt in prompts]
    list(engine.generate(ids, Sampling(1, 0.8, max_new_tokens=TOKENS)))


def interval(values: list[float], resamples: int = 2000) -> tuple[float, float]:
    """Return the 95% bootstrap interval of the median."""
    dice = random.Random(1)
    medians = sorted(
        statistics.median(dice.choices(values, k=len(values))) for _ in range(resamples)
    )
    return medians[int(0.025 * resamples)], medians[int(0.975 * resamples)]


if __name__ == "__main__":
    main()
