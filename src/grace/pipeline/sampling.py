"""Stage `sample`: the backbone answers the questions of every split."""

from __future__ import annotations

import dataclasses
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from grace.config import to_dict
from grace.engines import ModelEngine, Sampling
from grace.engines.checks import check_contexts
from grace.estimators import Answers, Draw, Draws
from grace.pipeline.context import Context
from grace.progress import progress
from grace.records import Question, Response, response_id
from grace.store import SPLITS, Split
from grace.tasks import Split as SplitName
from grace.tasks.draw import MOST
from grace.tasks.jsonl import TASK
from grace.tasks.prompts import draw_training


def sample(context: Context) -> None:
    """Draw the questions of each split and sample their responses."""
    context.settle()
    settings = context.settings
    outputs = [context.directory.asking] if context.directory.asking.exists() else []
    for name in SPLITS:
        draw_questions(context, context.directory.split(name), name)
        _refuse_too_long(context, name)
    _say_sizes(context)
    for name in SPLITS:
        split = context.directory.split(name)
        sampling = sampling_for(context, name)
        sample_split(context, "base", split, sampling, stage="sample")
        outputs += [split.questions.path, split.responses.path]
    context.engines.forget_sampling()
    if settings.data.shots:
        outputs.append(context.shots.path)
    tree = to_dict(settings)
    context.directory.finish(
        "sample", {key: tree[key] for key in ("seed", "model", "data", "sample")}, [], outputs
    )


def draw_questions(context: Context, split: Split, name: SplitName) -> None:
    """Draw a split's questions, once per run; with those of train, the examples before them."""
    if split.questions.path.exists():
        return
    data, seed = context.settings.data, context.settings.seed
    if name == "train":
        shots, drawn = draw_training(context.task, data, seed)
        if shots:
            context.shots.write(shots)
    else:
        drawn = context.task.questions(name, data, seed)
    split.questions.write(drawn)


def _say_sizes(context: Context) -> None:
    """Say how many questions each split has where the settings leave it open."""
    data = context.settings.data
    if data.train and data.validation and data.test:
        return
    sizes = [f"{len(context.directory.split(name).questions.read()):,} {name}" for name in SPLITS]
    context.say(
        f"questions: {', '.join(sizes)} (up to {', '.join(f'{most:,}' for most in MOST.values())} "
        "unless data.train, data.validation and data.test say otherwise)"
    )


def draw_shots(context: Context) -> None:
    """Draw the examples for a task that is not trained on, once per run."""
    data = dataclasses.replace(context.settings.data, train=1, validation=1)
    if data.shots and not context.shots.path.exists():
        context.shots.write(draw_training(context.task, data, context.settings.seed)[0])


def _refuse_too_long(context: Context, name: str) -> None:
    """Refuse a question that the model cannot hold before any is answered; name its line."""
    split, sampling = context.directory.split(name), sampling_for(context, name)
    if _is_sampled(split, sampling.num_samples):
        return
    questions, limit = split.questions.read(), context.sampler("base").limit
    for question, prompt in zip(questions, context.prompts(questions), strict=True):
        if limit is not None and len(prompt) + sampling.max_new_tokens > limit:
            lines = TASK.places(context.settings.data) if context.task is TASK else {}
            place = lines.get(question.id, question.id)
            check_contexts([prompt], limit, sampling.max_new_tokens, [place])


def sampling_for(context: Context, name: str) -> Sampling:
    """Return how responses are sampled for a split."""
    sample, training = context.settings.sample, name == "train"
    return Sampling(
        num_samples=sample.train_samples if training else sample.test_samples,
        temperature=sample.train_temperature if training else sample.test_temperature,
        top_p=sample.top_p,
        max_new_tokens=sample.max_new_tokens,
        seed=context.settings.seed,
    )


class Unit(NamedTuple):
    """Questions that are answered together; the answers do not depend on other units."""

    number: int
    keys: list[str]  # ids of the questions
    prompts: list[Sequence[int]]
    sampling: Sampling

    @property
    def ids(self) -> list[str]:
        """The ids of the responses, in the order in which they are stored."""
        return [response_id(key, k) for key in self.keys for k in range(self.sampling.num_samples)]

    def answer(self, engine: ModelEngine) -> list[Response]:
        """Sample the responses to all questions of the unit."""
        made = dict(engine.generate(self.prompts, self.sampling, keys=self.keys))
        return [
            Response(
                id=response_id(key, k),
                question_id=key,
                sample=k,
                text=one.text,
                token_ids=one.token_ids,
                finish_reason=one.finish_reason,
                logprobs=tuple(round(value, 6) for value in one.logprobs),
                end_logprob=one.end_logprob,
                confidence=one.confidence,
            )
            for place, key in enumerate(self.keys)
            for k, one in enumerate(made[place])
        ]


def plan_units(
    engine: ModelEngine,
    questions: Sequence[Question],
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
) -> list[Unit]:
    """Return all units of work that answer these questions: of a split, or of a labelled shard."""
    plan = engine.plan(prompts, sampling.num_samples, sampling.max_new_tokens)
    return [
        Unit(number, [questions[i].id for i in rows], [prompts[i] for i in rows], sampling)
        for number, rows in enumerate(plan)
    ]


def sample_split(
    context: Context, answers: Answers, split: Split, sampling: Sampling, *, stage: str
) -> None:
    """Let a model answer a split's questions, one unit at a time, from where a kill left off.

    The model is loaded only if a response is missing.
    """
    if _is_sampled(split, sampling.num_samples):
        return
    engine, questions = context.sampler(answers), split.questions.read()
    label = context.directory.label(split)
    units = plan_units(engine, questions, context.prompts(questions), sampling)
    left = units[split.responses.resume([unit.ids for unit in units]) :]
    done = len(questions) - sum(len(unit.keys) for unit in left)
    with progress(f"{stage} {label}", len(questions), done=done, unit="questions") as advance:
        for unit in left:
            start = time.perf_counter()
            rows = unit.answer(engine)
            seconds = time.perf_counter() - start
            context.directory.add_time(stage, f"{label}/{unit.number}", seconds, len(rows))
            split.responses.append(rows)
            advance(len(unit.keys))


def draw_further(context: Context, answers: Answers, split: Split, count: int) -> Draws:
    """Return `count` samples of the question of each response of a split, drawn once per run.

    They are drawn at `sample.draw_temperature`, beside the responses that are rated, and kept in
    the split's folder `draws-COUNT`.
    """
    sample = context.settings.sample
    sampling = dataclasses.replace(
        sampling_for(context, "test"), num_samples=count, temperature=sample.draw_temperature
    )
    draws = split.draws(count)
    sample_split(context, answers, draws, sampling, stage="score")
    by_question = defaultdict(list)
    for row in draws.responses.read():
        by_question[row.question_id].append(Draw(row, context.task.answer(row.text)))
    return [by_question[response.question_id] for response in split.responses.read()]


def _is_sampled(split: Split, num_samples: int) -> bool:
    """Return whether all questions of a split have their responses."""
    if (ids := split.responses.ids()) is None:
        return False
    wanted = [response_id(q.id, k) for q in split.questions.read() for k in range(num_samples)]
    return sorted(ids) == sorted(wanted)
