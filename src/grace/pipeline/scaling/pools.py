"""Pools: the samples of every question of a split that strategies vote over.

They are drawn once per run, number and temperature, and kept beside the split's other responses.
A report says how right and how sure they are one by one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from grace.estimators import Answers, asked_by
from grace.metrics import evaluate, wqd
from grace.pipeline.context import Context
from grace.pipeline.sampling import sampling_for
from grace.pipeline.stages.cost import Meter, MeteredEngine
from grace.pipeline.stages.score import KnownSplits, answer, check_values, estimator_of
from grace.progress import progress
from grace.records import Confidence, Response
from grace.report.rows.votes import Pooled, PooledConfidence
from grace.scaling import Pool
from grace.store import Split

UNIT = 16  # questions whose samples are rated together
OWN = "grace"  # the estimator whose confidences come with the tuned model's samples
METRICS = ("accuracy", "ece", "brier", "auroc")


def draw_pool(
    context: Context, answers: Answers, split: Split, count: int, temperature: float, stage: str
) -> Split:
    """Return `count` graded samples of each question of a split, drawn and graded once per run.

    Args:
        context: the run.
        answers: whose samples.
        split: the responses of the same model, beside which they are kept.
        count: samples per question.
        temperature: sampling temperature.
        stage: under which name progress and times are kept.
    """
    pool = split.pool(count, temperature)
    sampling = dataclasses.replace(
        sampling_for(context, "test"), num_samples=count, temperature=temperature
    )
    answer(context, answers, pool, stage=stage, sampling=sampling)
    return pool


def rate_pool(context: Context, name: str, pool: Split) -> None:
    """Let an estimator rate the samples of a pool, some questions at a time; resumes."""
    estimator = estimator_of(context.settings, name)
    table = pool.confidences(name)
    ids = [response.id for response in pool.responses.read()]
    size = UNIT * (len(ids) // len(pool.questions.read()))
    units = [range(start, min(start + size, len(ids))) for start in range(0, len(ids), size)]
    done = table.resume([[ids[i] for i in unit] for unit in units])
    if done == len(units):
        return
    engine = MeteredEngine(lambda: context.engine(asked_by(estimator)), Meter())
    known = KnownSplits(context, estimator.answers)
    fitted = estimator.fit(known, engine, context.settings.seed)
    samples = context.samples(pool)
    finished = sum(map(len, units[:done]))
    label = f"scale {name}"
    with progress(label, len(ids), done=finished, unit="samples") as advance:
        for unit in units[done:]:
            values = fitted.rate(samples.part(unit))  # each is rated by itself
            check_values(name, values, len(unit))
            pairs = zip(unit, values, strict=True)
            table.append([Confidence(ids[i], value) for i, value in pairs])
            advance(len(unit))


def read_pool(pool: Split, estimators: Sequence[str] = ()) -> Pool:
    """Return the samples of a pool as arrays, question by question in the order of the split."""
    responses, grades = pool.responses.read(), pool.grades.read()
    rows: dict[str, list[int]] = {question.id: [] for question in pool.questions.read()}
    for at, response in enumerate(responses):
        rows[response.question_id].append(at)
    places = list(rows.values())
    values = {
        name: [response.confidence for response in responses]
        if name == OWN
        else [row.confidence for row in pool.confidences(name).read()]
        for name in estimators
    }
    tokens = [len(response.token_ids) for response in responses]
    return Pool.from_answers(
        [[grades[i].answer for i in row] for row in places],
        [[grades[i].correct for i in row] for row in places],
        [[tokens[i] for i in row] for row in places],
        {name: np.array(value, dtype=np.float64)[places] for name, value in values.items()},
        _traces(responses, places) if all(response.trace for response in responses) else None,
    )


def _traces(
    responses: Sequence[Response], places: Sequence[Sequence[int]]
) -> list[list[tuple[float, ...]]]:
    """Return c before each token of each sample; the last number of one that ended is its end's."""
    return [[responses[i].trace[: len(responses[i].token_ids)] for i in row] for row in places]


def describe(pool: Pool, called: Callable[[str], str], **about: Any) -> Pooled:
    """Return the row `about` a pool: how right single samples are, and how good their confidences.

    `called` returns what the row calls an estimator.

    `wqd` is within-question discrimination: whether the right samples of a question are surer
    than its wrong ones. That is what helps a vote.
    """
    number_QS = np.broadcast_to(np.arange(pool.num_questions)[:, None], pool.answer_QS.shape)
    confidences = []
    for name, value_QS in pool.confidences.items():
        known_QS = ~np.isnan(value_QS)
        if not known_QS.any():
            continue
        value_N, correct_N = value_QS[known_QS], pool.correct_QS[known_QS]
        found = evaluate(value_N, correct_N, METRICS)
        found["wqd"] = wqd(value_N, correct_N, number_QS[known_QS].tolist())
        known = {key: None if math.isnan(value) else value for key, value in found.items()}
        confidences.append(PooledConfidence(estimator=called(name), n=len(value_N), **known))
    return Pooled(
        **about,
        n=pool.num_questions,
        samples=pool.num_samples,
        accuracy=float(pool.correct_QS.mean()),
        without_answer=float((pool.answer_QS < 0).mean()),
        mean_tokens=float(pool.tokens_QS.mean()),
        confidences=tuple(confidences),
    )
