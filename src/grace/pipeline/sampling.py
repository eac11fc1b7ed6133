"""Sampling and grading responses, for the splits of a run and for the shards of `grace label`."""

from __future__ import annotations

import dataclasses
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from grace.config import RunSettings
from grace.engines import AT_ONCE, Known, Sampling
from grace.engines.base import ModelEngine
from grace.estimators import Answers, Draw, Draws, Samples
from grace.pipeline.context import Context
from grace.pipeline.stages.grade import grade_split
from grace.progress import progress
from grace.records import Question, Response, is_whole, response_id
from grace.store import Split

Ids = Sequence[int]


def sampling_for(settings: RunSettings, name: str) -> Sampling:
    """Return the sampling settings of a split."""
    sample, training = settings.sample, name == "train"
    return Sampling(
        num_samples=sample.train_samples if training else sample.test_samples,
        temperature=sample.train_temperature if training else sample.test_temperature,
        top_p=sample.top_p,
        max_new_tokens=sample.max_new_tokens,
        seed=settings.seed,
    )


class Unit(NamedTuple):
    """Questions that are answered together; the answers do not depend on other units."""

    number: int
    keys: list[str]  # ids of the questions
    prompts: list[Ids]
    sampling: Sampling

    @property
    def ids(self) -> list[str]:
        """The ids of the responses, in the order in which they are stored."""
        return [response_id(key, k) for key in self.keys for k in range(self.sampling.num_samples)]

    def answer(
        self, engine: ModelEngine, advance: Callable[[int], None] = lambda count: None
    ) -> list[Response]:
        """Sample the responses to all questions of the unit; `advance` counts those answered."""
        samples: dict[int, list[Response]] = {}
        for place, found in engine.generate(self.prompts, self.sampling, keys=self.keys):
            samples[place] = found
            advance(1)
        traced = is_traced(engine)
        return [
            dataclasses.replace(
                one,
                id=response_id(key, k),
                question_id=key,
                sample=k,
                logprobs=rounded(one.logprobs),
                trace=rounded(one.trace) if traced else (),
            )
            for place, key in enumerate(self.keys)
            for k, one in enumerate(samples[place])
        ]


def plan_units(
    engine: ModelEngine, questions: Sequence[Question], prompts: Sequence[Ids], sampling: Sampling
) -> list[Unit]:
    """Return the units of work that answer all questions of a split, or of a labelled shard."""
    plan = engine.plan(prompts, sampling.num_samples, sampling.max_new_tokens)
    return [
        Unit(number, [questions[i].id for i in rows], [prompts[i] for i in rows], sampling)
        for number, rows in enumerate(plan)
    ]


def answer(
    context: Context,
    answers: Answers,
    split: Split,
    sampling: Sampling | None = None,
) -> None:
    """Let a model answer a split's questions, and grade the answers; done once."""
    sampling = sampling or sampling_for(context.settings, "test")
    if not is_answered(split, sampling.num_samples):
        sample_split(context, answers, split, sampling)
        grade_split(context, split)


def answer_tuned(context: Context, split: Split) -> None:
    """Let the tuned model answer and grade a split; without LoRA, rate the backbone's answers."""
    if context.directory.frozen:
        answer(context, "base", split)
        _rate_split(context, split)
    answer(context, "tuned", split.tuned)


def _rate_split(context: Context, split: Split) -> None:
    """Write the backbone's answers with the tuned model's confidences; resumes."""
    tuned, ids = split.tuned.responses, [one.id for one in split.responses.read()]
    units = [range(at, min(at + AT_ONCE, len(ids))) for at in range(0, len(ids), AT_ONCE)]
    left = units[tuned.resume([[ids[row] for row in unit] for unit in units]) :]
    if not left:
        return
    engine, samples = context.engines.tuned, context.samples(split)
    label, done = context.directory.label(split.tuned), left[0].start
    with progress(f"rate {label}", len(ids), done=done, unit="answers") as advance:
        for unit in left:
            tuned.append(_rated(engine, samples.part(unit)))
            advance(len(unit))


def _rated(engine: ModelEngine, samples: Samples) -> list[Response]:
    """Return the model's own responses with their confidence, None where there is none."""
    responses = samples.responses
    ended = [row for row, one in enumerate(responses) if is_whole(one)]
    if not is_traced(engine):
        known = _known(responses[row] for row in ended)
        found = engine.rated(*samples.token_ids(ended), known)
        values = {row: one.confidence for row, one in zip(ended, found, strict=True)}
        return [
            dataclasses.replace(one, confidence=values.get(row))
            for row, one in enumerate(responses)
        ]
    traces = engine.traces(*samples.token_ids(range(len(responses))), _known(responses))
    values = {row: traces[row][-1] for row in ended}
    return [
        dataclasses.replace(
            one,
            confidence=values.get(row),
            trace=rounded(traces[row][: len(one.token_ids) + (row in values)]),
        )
        for row, one in enumerate(responses)
    ]


def _known(responses: Iterable[Response]) -> list[Known]:
    """Return the log-probabilities that are stored; an end that was cut off counts for nothing."""
    return [Known(one.logprobs, one.end_logprob or 0.0) for one in responses]


def is_traced(engine: ModelEngine) -> bool:
    """Return whether an engine knows its confidence along the way."""
    return engine.evidence is not None and engine.evidence.trace is not None


def rounded(values: Sequence[float]) -> tuple[float, ...]:
    """Return values as they are stored."""
    return tuple(round(value, 6) for value in values)


def sample_split(context: Context, answers: Answers, split: Split, sampling: Sampling) -> None:
    """Let a model answer a split by units; resumes. Its seconds are kept as long as its answers."""
    if is_sampled(split, sampling.num_samples):
        return
    engine, questions = context.sampler(answers), split.questions.read()
    label = context.directory.label(split)
    owner = "answer" if answers == "tuned" or label.startswith("transfer/") else "sample"
    units = plan_units(engine, questions, context.prompts(questions), sampling)
    left = units[split.responses.resume([unit.ids for unit in units]) :]
    done = len(questions) - sum(len(unit.keys) for unit in left)
    with progress(f"sample {label}", len(questions), done=done, unit="questions") as advance:
        for unit in left:
            start = time.perf_counter()
            rows = unit.answer(engine, advance)
            seconds = time.perf_counter() - start
            context.directory.add_time(owner, f"{label}/{unit.number}", seconds, len(rows))
            split.responses.append(rows)


def further(context: Context, count: int, temperature: float) -> Sampling:
    """Return how further samples are drawn: with another seed, or they would be the same."""
    usual = sampling_for(context.settings, "test")
    seed = usual.seed + 1 if usual.temperature else usual.seed
    return dataclasses.replace(usual, num_samples=count, temperature=temperature, seed=seed)


def draw_further(context: Context, answers: Answers, split: Split, count: int) -> Draws:
    """Return `count` further samples of each response's question, drawn once per run."""
    temperature = context.settings.sample.draw_temperature
    pool = split.pool(count, temperature)
    sample_split(context, answers, pool, further(context, count, temperature))
    choices = {question.id: question.choices for question in split.questions.read()}
    by_question = defaultdict(list)
    for row in pool.responses.read():
        said = context.task.answer(row.text, choices[row.question_id])
        by_question[row.question_id].append(Draw(row, said))
    return [by_question[response.question_id] for response in split.responses.read()]


def is_sampled(split: Split, num_samples: int) -> bool:
    """Return whether all questions of a split have their responses."""
    if (ids := split.responses.ids()) is None:
        return False
    planned = [response_id(q.id, k) for q in split.questions.read() for k in range(num_samples)]
    return sorted(ids) == sorted(planned)


def is_answered(split: Split, num_samples: int) -> bool:
    """Return whether all questions of a split have their responses and grades."""
    return is_sampled(split, num_samples) and split.responses.ids() == split.grades.ids()
