"""`grace run --dry-run`: the stages, answers and tokens that a run has left.

Tokens of prompts are estimated from the first questions of each split; those of responses are
upper bounds, because a response may end before `sample.max_new_tokens`. The cost of estimators is
not included; the report has it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from grace.chat import encode_chat, has_chat_template
from grace.config import DataSettings, ModelSettings, RunSettings
from grace.engines.gguf import without_weights
from grace.pipeline.settings import at_most_half, longest_answer
from grace.store import SPLITS
from grace.tasks import load_task
from grace.tasks.prompts import conversation, draw_training

PROMPTS_READ = 200  # of a split, to estimate the mean length of its prompts


class StagePlan(NamedTuple):
    """One stage of a run: the answers that it writes or reads, and the tokens through the model."""

    stage: str
    answers: int = 0
    tokens: int = 0


class QuestionStats(NamedTuple):
    """The questions of each split, and how long their prompts are."""

    counts: dict[str, int]
    # mean; what all begin with does not count, as it is read once per batch
    prompt_tokens: dict[str, float]
    longest: int  # tokens of an answer, where the settings leave it open


def plan_runs(runs: Iterable[tuple[RunSettings, Collection[str]]]) -> list[list[StagePlan]]:
    """Return the stages that runs have left to do; nothing is written, and no weights are read."""
    read: dict[tuple[ModelSettings, DataSettings, int], QuestionStats] = {}
    plans = []
    for run, stages in runs:
        key = (run.model, run.data, run.seed)
        if key not in read:
            read[key] = _read_questions(run)
        plans.append([step for step in _steps(run, read[key]) if step.stage in stages])
    return plans


def _steps(settings: RunSettings, questions: QuestionStats) -> Iterator[StagePlan]:
    sample = settings.sample
    longest = sample.max_new_tokens or questions.longest
    samples = dict.fromkeys(questions.counts, sample.test_samples) | {"train": sample.train_samples}
    answers = {name: count * samples[name] for name, count in questions.counts.items()}
    sampled = {  # tokens of the prompts and of the responses to them
        name: round(count * questions.prompt_tokens[name]) + answers[name] * longest
        for name, count in questions.counts.items()
    }
    yield StagePlan("sample", sum(answers.values()), sum(sampled.values()))
    yield StagePlan("grade", sum(answers.values()))
    trained = answers["train"]
    once = round(trained * (questions.prompt_tokens["train"] + longest))
    yield StagePlan("features", trained, once)
    trains = settings.method == "paper"
    yield StagePlan("fit", trained, settings.paper.epochs * once * trains)
    sets = 1 + len(settings.report.transfer)
    yield StagePlan("answer", sets * answers["test"], sets * sampled["test"])
    yield StagePlan("score", sets * answers["test"])
    yield StagePlan("report", sets * answers["test"])


def _read_questions(settings: RunSettings) -> QuestionStats:
    from grace.engines.local.forward import shared
    from grace.engines.local.loading import load_tokenizer, read_limit

    model, data, task = settings.model, settings.data, load_task(settings.data.task)
    code = model.trust_remote_code
    with without_weights(model.path) as path:
        tokenizer = load_tokenizer(
            path, trust_remote_code=code, thinking=model.thinking, date=model.date
        )
        limit = read_limit(path, trust_remote_code=code)
    if not has_chat_template(tokenizer):
        data = dataclasses.replace(data, prompt="text")
    shots, training = draw_training(task, data, settings.seed)
    counts: dict[str, int] = {}
    prompt_tokens: dict[str, float] = {}
    for split in SPLITS:
        drawn = training if split == "train" else task.questions(split, data, settings.seed)
        chats = [conversation(task, q, data, shots) for q in drawn[:PROMPTS_READ]]
        prompts = [encode_chat(tokenizer, chat) for chat in chats]
        counts[split] = len(drawn)
        prompt_tokens[split] = sum(map(len, prompts)) / len(prompts) - shared(prompts)
    longest = longest_answer(tokenizer, training, thinking=model.thinking)
    return QuestionStats(counts, prompt_tokens, at_most_half(longest, limit))
