"""Pools: the samples of every question of a split that strategies vote over.

They are drawn once per run, number and temperature, and kept beside the split's other responses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from grace.estimators import Answers, asked_by
from grace.pipeline.context import Context
from grace.pipeline.cost import Meter, MeteredEngine
from grace.pipeline.sampling import sampling_for
from grace.pipeline.scoring import KnownSplits, answer, check_values, estimator_of
from grace.progress import progress
from grace.records import Confidence
from grace.scaling import Pool
from grace.store import Split

UNIT = 16  # questions whose samples are rated together
OWN = "grace"  # the estimator whose confidences come with the tuned model's samples


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
    )
