"""What asking vLLM for the confidence costs, in tokens per second of the same run.

Two ways of the same request take turns, each pair in random order: `plain` asks for tokens, `asked`
for the log-probabilities of EOS and `<CNF>` at every step too (the one request of
`grace.engines.vllm`). Reported is the ratio of their seconds, the median over the pairs, with a
bootstrap interval of the median: by the clock, and of the processor, which other jobs on the
machine disturb less.

    .venv-vllm/bin/python bench/vllm_overhead.py [MODEL] [--pairs 100]

MODEL is a merged export; without it, a random model of SmolLM2-135M's shape is made.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

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
    add_cnf(model, tokenizer)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def measure(model: Path, pairs: int, rows: int) -> None:
    import vllm

    from grace.engines.vllm import VllmEngine
    from grace.engines.vllm_loading import start

    llm, _ = start(
        str(model),
        model,
        "auto",
        {"max_model_len": 512, "max_num_seqs": rows, "enforce_eager": True},
        lora=False,
    )
    tokenizer = llm.get_tokenizer()
    engine = VllmEngine(llm, tokenizer)
    dice = random.Random(0)
    ways = {
        "plain": lambda: run(llm, requests(rows, dice), {}),
        "asked": lambda: run(
            llm, requests(rows, dice), {"logprob_token_ids": [*engine.reader.asked]}
        ),
    }
    for way in ways.values():
        way()
    seconds: dict[str, list[Seconds]] = {name: [] for name in ways}
    for _ in range(pairs):
        for name in dice.sample(list(ways), k=len(ways)):
            seconds[name].append(ways[name]())
    print(
        f"vLLM {vllm.__version__}, {model.name}, {rows} requests of {TOKENS} tokens, {pairs} pairs"
    )
    for kind in Seconds._fields:
        both = [[getattr(one, kind) for one in seconds[name]] for name in ("plain", "asked")]
        ratios = [asked / plain for plain, asked in zip(*both, strict=True)]
        low, high = interval(ratios)
        speeds = [rows * TOKENS / statistics.median(values) for values in both]
        print(
            f"{kind}: {speeds[0]:.0f} and {speeds[1]:.0f} tokens/s, overhead "
            f"{percent(statistics.median(ratios))} % [{percent(low)}, {percent(high)}]"
        )


class Seconds(NamedTuple):
    """What one run took."""

    clock: float
    processor: float


def percent(ratio: float) -> str:
    return f"{(ratio - 1) * 100:+.2f}"


def requests(rows: int, dice: random.Random) -> list[dict[str, Any]]:
    """Return prompts of 24 random tokens: none is in the prefix cache."""
    return [{"prompt_token_ids": [dice.randrange(6, 250) for _ in range(24)]} for _ in range(rows)]


def run(llm: Any, prompts: list[dict[str, Any]], more: dict[str, Any]) -> Seconds:
    """Return what sampling `TOKENS` tokens of every prompt takes."""
    from vllm import SamplingParams

    params = SamplingParams(
        temperature=0.8, max_tokens=TOKENS, ignore_eos=True, detokenize=False, seed=None, **more
    )
    clock, processor = time.perf_counter(), time.process_time()
    llm.generate(prompts, params, use_tqdm=False)
    return Seconds(time.perf_counter() - clock, time.process_time() - processor)


def interval(values: list[float], resamples: int = 2000) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the median."""
    dice = random.Random(1)
    medians = sorted(
        statistics.median(dice.choices(values, k=len(values))) for _ in range(resamples)
    )
    return medians[int(0.025 * resamples)], medians[int(0.975 * resamples)]


if __name__ == "__main__":
    main()
