"""`grace run --dry-run`: what a run would do, and with how many tokens through the model.

Counts are exact for prompts and upper bounds for responses, which may end before
`sample.max_new_tokens`.
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
    """One stage of a run: what it does, and the tokens through the model."""

    stage: str
    what: str
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
    what = f"{answers:,} answers of at most {longest} tokens"
    yield StagePlan("sample", what, generating(tuple(counts)))
    yield StagePlan("grade", f"{answers:,} answers")
    trained = counts["train"] * samples["train"]
    once = round(trained * (prompts["train"] + longest))
    yield StagePlan("features", f"{trained:,} training answers read", once)
    yield StagePlan("targets", f"a probe in {settings.target.folds} folds")
    yield StagePlan("fit", f"a read-out of {trained:,} training answers")
    if train.head == "pair" and train.lora == "never":
        yield StagePlan("train", "the rows alone, no LoRA")
    else:
        what = f"{train.epochs} epochs of {trained:,} answers, LoRA of rank {train.rank}"
        yield StagePlan("train", what, train.epochs * once)
    sets = 1 + len(settings.report.transfer)
    what = f"{sets * counts['test'] * samples['test']:,} answers of the tuned model"
    yield StagePlan("answer", what, sets * generating(("test",)))
    names = ", ".join(settings.report.estimators)
    yield StagePlan("score", f"{names} (what they cost comes with the report)")
    yield StagePlan("report", f"{settings.report.bootstrap:,} bootstrap resamples")


def _asked(settings: RunSettings) -> _Asked:
    from grace.engines.local.forward import shared
    from grace.engines.local.loading import load_tokenizer

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
