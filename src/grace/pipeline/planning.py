"""`grace run --dry-run`: what a run would do, with how many tokens, and about how long it takes.

Counts are exact for prompts and upper bounds for responses, which may end before
`sample.max_new_tokens`. Seconds come from two short measurements on the machine that is asked
(multiply-adds and memory traffic per second) and the model's size; expect a factor of two.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from grace.chat import encode_chat, has_chat_template
from grace.config import DataSettings, ModelSettings, RunSettings
from grace.engines.gguf import resolve_model
from grace.errors import ConfigError
from grace.pipeline.asking import longest_answer
from grace.pipeline.environment import hardware
from grace.store import SPLITS
from grace.tasks import load_task
from grace.tasks.prompts import conversation, draw_training

PROMPTS_READ = 200
EFFICIENCY = 0.5
"""Share of the measured matrix-product speed that a forward pass reaches."""

FORWARD, BACKWARD = 2, 4
"""Floating-point operations per parameter and token; LoRA needs no gradient of base weights."""


class StagePlan(NamedTuple):
    """One stage of a run: what it does, tokens through the model, and about how many seconds."""

    stage: str
    what: str
    tokens: int
    seconds: float


class RunPlan(NamedTuple):
    """The stages of one run and what they would run on."""

    steps: list[StagePlan]
    parameters: int
    hardware: str

    @property
    def tokens(self) -> int:
        """All tokens through the model."""
        return sum(step.tokens for step in self.steps)

    @property
    def seconds(self) -> float:
        """About how long all of it takes."""
        return sum(step.seconds for step in self.steps)


class Machine(NamedTuple):
    """Measured speed: floating-point operations and bytes per second."""

    flops: float
    bytes: float


def plan_runs(runs: Iterable[tuple[RunSettings, Collection[str]]]) -> list[RunPlan]:
    """Return the plans of the work that runs have left to do; nothing is written into them.

    The models' weights are not loaded, only their configs and tokenizers. A GGUF file is unpacked.

    Raises:
        ConfigError: the config or the tokenizer cannot be read.
        DataError: the questions cannot be read, or are too few.
    """
    sizes: dict[ModelSettings, _Size] = {}
    known: dict[tuple[ModelSettings, DataSettings, int], _Asked] = {}
    plans = []
    for run, stages in runs:
        if run.model not in sizes:
            sizes[run.model] = _size(run.model)
        key = (run.model, run.data, run.seed)
        if key not in known:
            known[key] = _asked(run)
        size = sizes[run.model]
        steps = [step for step in _steps(run, known[key], size) if step.stage in stages]
        plans.append(RunPlan(steps, size.parameters, hardware()))
    return plans


class _Size(NamedTuple):
    parameters: int
    bytes_per_parameter: int
    machine: Machine

    def forward(self, tokens: int, *, times: int = FORWARD) -> float:
        return tokens * times * self.parameters / (EFFICIENCY * self.machine.flops)

    def steps(self, number: float) -> float:
        """Return the seconds that reading all weights so often takes."""
        return number * self.parameters * self.bytes_per_parameter / self.machine.bytes


class _Asked(NamedTuple):
    """By split, how many questions there are and the mean number of tokens of the first prompts.

    What all prompts begin with is not counted: the model reads it once per batch.
    """

    counts: dict[str, int]
    prompts: dict[str, float]
    longest: int  # answer, in tokens, where the settings leave it open


def _steps(settings: RunSettings, asked: _Asked, size: _Size) -> Iterator[StagePlan]:
    sample, train, (counts, prompts, longest) = settings.sample, settings.train, asked
    samples = {name: sample.test_samples for name in counts} | {"train": sample.train_samples}
    longest = sample.max_new_tokens or longest

    def generating(names: Sequence[str]) -> tuple[int, float]:
        read = sum(round(counts[name] * prompts[name]) for name in names)
        written = sum(counts[name] * samples[name] * longest for name in names)
        rows = sample.batch_size or 64
        return read + written, size.forward(read + written) + size.steps(written / rows)

    answers = sum(counts[name] * samples[name] for name in counts)
    what = f"{answers:,} answers of at most {longest} tokens"
    yield StagePlan("sample", what, *generating(tuple(counts)))
    yield StagePlan("grade", f"{answers:,} answers", 0, 0.0)
    trained = counts["train"] * samples["train"]
    once = round(trained * (prompts["train"] + longest))
    yield StagePlan("features", f"{trained:,} training answers read", once, size.forward(once))
    yield StagePlan("targets", f"a probe in {settings.target.folds} folds", 0, 0.0)
    seconds = train.epochs * size.forward(once, times=BACKWARD)
    what = f"{train.epochs} epochs of {trained:,} answers, LoRA of rank {train.rank}"
    yield StagePlan("train", what, train.epochs * once, seconds)
    sets = 1 + len(settings.report.transfer)
    tokens, seconds = generating(("test",))
    what = f"{sets * counts['test'] * samples['test']:,} answers of the tuned model"
    yield StagePlan("answer", what, sets * tokens, sets * seconds)
    names = ", ".join(settings.report.estimators)
    yield StagePlan("score", f"{names} (what they cost comes with the report)", 0, 0.0)
    yield StagePlan("report", f"{settings.report.bootstrap:,} bootstrap resamples", 0, 0.0)


def measure(device: Any, dtype: Any) -> Machine:
    """Return the speed of a device, measured in about a second."""
    import torch

    size = 4096 if device.type == "cuda" else 768
    matrix = torch.randn(size, size, device=device).to(dtype)
    flops = 2 * size**3 / _seconds(lambda: matrix @ matrix, device)
    block = torch.ones(2**28 if device.type == "cuda" else 2**25, device=device)
    return Machine(flops, 2 * block.nbytes / _seconds(block.clone, device))


def _seconds(work: Any, device: Any) -> float:
    """Return the least seconds of one call, of at least three calls in half a second."""
    import torch

    times: list[float] = []
    while len(times) < 3 or sum(times) < 0.5:
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - start)
    return min(times)


def _size(model: ModelSettings) -> _Size:
    from grace.engines.local.loading import pick_device

    device = pick_device(model.device)
    dtype = _dtype(model.dtype, device)
    parameters = _parameters(resolve_model(model.path), model.trust_remote_code)
    return _Size(parameters, dtype.itemsize, measure(device, dtype))


def _dtype(name: str, device: Any) -> Any:
    import torch

    if name == "auto":
        name = "float32" if device.type == "cpu" else "bfloat16"
    return getattr(torch, name)


def _parameters(path: str, trust_remote_code: bool) -> int:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
    except (OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"the config of {path} cannot be read: {reason}") from None
    with torch.device("meta"):
        made = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    return sum(parameter.numel() for parameter in made.parameters())


def _asked(settings: RunSettings) -> _Asked:
    from grace.engines.local.loading import load_tokenizer
    from grace.engines.local.prefix import shared

    model, data, task = settings.model, settings.data, load_task(settings.data.task)
    path = resolve_model(model.path)
    tokenizer = load_tokenizer(path, trust_remote_code=model.trust_remote_code)
    counts: dict[str, int] = {}
    means: dict[str, float] = {}
    if not has_chat_template(tokenizer):
        data = dataclasses.replace(data, prompt="text")
    shots, training = draw_training(task, data, settings.seed)
    for split in SPLITS:
        drawn = training if split == "train" else task.questions(split, data, settings.seed)
        chats = [conversation(task, q, data, shots) for q in drawn[:PROMPTS_READ]]
        prompts = [encode_chat(tokenizer, chat) for chat in chats]
        counts[split] = len(drawn)
        means[split] = sum(map(len, prompts)) / len(prompts) - shared(prompts)
    return _Asked(counts, means, longest_answer(tokenizer, training))
