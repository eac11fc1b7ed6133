"""Pools: several samples of every question of a split, for strategies to vote over.

They are drawn once per run, number and temperature, and kept beside the split's other responses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from grace.estimators import Answers, asked_by, rated_model
from grace.metrics import evaluate
from grace.pipeline.context import Context
from grace.pipeline.stages.answers import answer, further
from grace.pipeline.stages.cost import Meter, MeteredEngine
from grace.pipeline.stages.score import KnownSplits, checked, fitted_to
from grace.progress import progress
from grace.records import Confidence
from grace.report.rows import Pooled, PooledConfidence
from grace.scaling import OWN, Pool, pair_wins
from grace.store import Split

UNIT = 256  # samples that are rated together
METRICS = ("accuracy", "ece", "brier", "auroc")


def draw_pool(
    context: Context, answers: Answers, split: Split, count: int, temperature: float
) -> Split:
    """Return `count` graded samples of each question of a split, drawn and graded once per run."""
    pool = split.pool(count, temperature)
    sampling = further(context, count, temperature)
    answer(context, answers, pool, sampling)
    return pool


def votes_of(context: Context, name: str, budget: int) -> Pool:
    """Return `budget` samples of the tuned model for every question of a split, drawn once."""
    temperature = context.settings.sample.draw_temperature
    split = context.directory.split(name).tuned
    return read_pool(draw_pool(context, "tuned", split, budget, temperature), [OWN])


def rate_pool(context: Context, name: str, pool: Split) -> None:
    """Let an estimator rate the samples of a pool, some at a time; resumes."""
    estimator = fitted_to(context, name)
    table = pool.confidences(name)
    responses = pool.responses.read()
    ids = [response.id for response in responses]
    said = [(one.question_id, one.finish_reason, *one.token_ids) for one in responses]
    left = table.left(ids, UNIT)
    if not left:
        return
    engine = MeteredEngine(lambda: context.engine(asked_by(estimator)), Meter())
    fit_on = KnownSplits(context, rated_model(estimator))
    fitted = estimator.fit(fit_on, engine, context.settings.seed)
    samples = context.samples(pool)
    with progress(f"scale {name}", len(ids), done=left[0].start, unit="samples") as advance:
        for unit in left:
            rows = {said[i]: i for i in unit}  # equal samples of a question are rated once
            rated = checked(name, fitted.rate(samples.part([*rows.values()])), len(rows))
            value = dict(zip(rows, rated, strict=True))
            table.append([Confidence(ids[i], value[said[i]]) for i in unit])
            advance(len(unit))


def read_pool(pool: Split, estimators: Sequence[str] = ()) -> Pool:
    """Return the samples of a pool as arrays, question by question in the order of the split."""
    responses, grades = pool.responses.read(), pool.grades.read()
    rows: dict[str, list[int]] = {question.id: [] for question in pool.questions.read()}
    for at, response in enumerate(responses):
        rows[response.question_id].append(at)
    places = list(rows.values())
    confidences = {}
    for name in estimators:
        rated = responses if name == OWN else pool.confidences(name).read()
        values = np.array([row.confidence for row in rated], dtype=np.float64)
        confidences[name] = values[places]
    tokens = [len(response.token_ids) for response in responses]
    return Pool.from_answers(
        [[grades[i].answer for i in row] for row in places],
        [[grades[i].correct for i in row] for row in places],
        [[tokens[i] for i in row] for row in places],
        confidences,
    )


def describe(pool: Pool, row_name: Callable[[str], str], **about: Any) -> Pooled:
    """Return the row `about` a pool: accuracy of single samples, and quality of their confidences.

    `row_name` maps an estimator to its name in the row. `wqd` is within-question discrimination:
    whether the right samples of a question are surer than its wrong ones. That is what helps a
    vote.
    """
    confidences = []
    for name, value_QS in pool.confidences.items():
        rated_QS = ~np.isnan(value_QS)
        if not rated_QS.any():
            continue
        values = evaluate(value_QS[rated_QS], pool.correct_QS[rated_QS], METRICS)
        wins_Q, pairs_Q = pair_wins(pool, name)
        values["wqd"] = float(wins_Q.sum() / pairs_Q.sum()) if pairs_Q.any() else math.nan
        defined = {key: None if math.isnan(value) else value for key, value in values.items()}
        count = int(rated_QS.sum())
        confidences.append(PooledConfidence(estimator=row_name(name), n=count, **defined))
    return Pooled(
        **about,
        n=pool.num_questions,
        samples=pool.num_samples,
        accuracy=float(pool.correct_QS.mean()),
        without_answer=float((pool.answer_QS < 0).mean()),
        mean_tokens=float(pool.tokens_QS.mean()),
        confidences=tuple(confidences),
    )
