"""`grace run --dry-run`: the stages, answers and tokens through the model that a run has left.

Tokens are exact for prompts and upper bounds for responses, which may end before
`sample.max_new_tokens`. What estimators cost comes with the report.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from grace.chat import encode_chat, has_chat_template
from grace.config import DataSettings, ModelSettings, RunSettings
from grace.engines.gguf import resolve_model
from grace.pipeline.asking import longest_answer
from grace.store import SPLITS
from grace.tasks import load_task
from grace.tasks.prompts import conversation, draw_training

PROMPTS_READ = 200


class StagePlan(NamedTuple):
    """One stage of a run: the answers that it writes or reads, and the tokens through the model."""

    stage: str
    answers: int = 0
    tokens: int = 0


def plan_runs(runs: Iterable[tuple[RunSettings, Collection[str]]]) -> list[list[StagePlan]]:
    """Return the stages that runs have left to do; nothing is written into them.

    The models' weights are not loaded, only their tokenizers. A GGUF file is unpacked.

    Raises:
        ModelError: there is no such model, or its tokenizer cannot be read.
        DataError: the questions cannot be read, or are too few.
    """
    known: dict[tuple[ModelSettings, DataSettings, int], _Asked] = {}
    plans = []
    for run, stages in runs:
        key = (run.model, run.data, run.seed)
        if key not in known:
            known[key] = _asked(run)
        plans.append([step for step in _steps(run, known[key]) if step.stage in stages])
    return plans


class _Asked(NamedTuple):
    """By split, how many questions there are and the mean number of tokens of the first prompts.

    What all prompts begin with is not counted: the model reads it once per batch.
    """

    counts: dict[str, int]
    prompts: dict[str, float]
    longest: int  # answer, in tokens, where the settings leave it open


def _steps(settings: RunSettings, asked: _Asked) -> Iterator[StagePlan]:
    sample, train, (counts, prompts, longest) = settings.sample, settings.train, asked
    samples = {name: sample.test_samples for name in counts} | {"train": sample.train_samples}
    longest = sample.max_new_tokens or longest

    def generating(names: Sequence[str]) -> int:
        read = sum(round(counts[name] * prompts[name]) for name in names)
        return read + sum(counts[name] * samples[name] * longest for name in names)

    answers = sum(counts[name] * samples[name] for name in counts)
    yield StagePlan("sample", answers, generating(tuple(counts)))
    yield StagePlan("grade", answers)
    trained = counts["train"] * samples["train"]
    once = round(trained * (prompts["train"] + longest))
    yield StagePlan("features", trained, once)
    yield StagePlan("targets", trained)
    yield StagePlan("fit", trained)
    lora = train.head != "pair" or train.lora != "never"
    yield StagePlan("train", trained, train.epochs * once * lora)
    sets = 1 + len(settings.report.transfer)
    tested = counts["test"] * samples["test"]
    yield StagePlan("answer", sets * tested, sets * generating(("test",)))
    yield StagePlan("score", sets * tested)
    yield StagePlan("report", sets * tested)


def _asked(settings: RunSettings) -> _Asked:
    from grace.engines.local.forward import shared
    from grace.engines.local.loading import load_tokenizer

    model, data, task = settings.model, settings.data, load_task(settings.data.task)
    path = resolve_model(model.path)
    tokenizer = load_tokenizer(
        path, trust_remote_code=model.trust_remote_code, thinking=model.thinking
    )
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
    return _Asked(counts, means, longest_answer(tokenizer, training, thinking=model.thinking))
