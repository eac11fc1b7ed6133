"""Pools: the samples of every question of a split that strategies vote over.

They are drawn once per run, number and temperature, and kept beside the split's other responses.
A report says how right and how sure they are one by one, and shows some in full.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from grace.estimators import Answers, asked_by
from grace.metrics import evaluate, wqd
from grace.pipeline.context import Context
from grace.pipeline.sampling import sampling_for
from grace.pipeline.stages.cost import Meter, MeteredEngine
from grace.pipeline.stages.score import KnownSplits, answer, check_values, estimator_of
from grace.progress import progress
from grace.records import Confidence, Grade, Question, Response, Vote
from grace.report.scaling.rows import Case, CaseDecision, CaseSample, Pooled, PooledConfidence
from grace.scaling import Pool
from grace.store import Split
from grace.strategies import Majority, Policy, Weighted, chosen, decide

UNIT = 16  # questions whose samples are rated together
OWN = "grace"  # the estimator whose confidences come with the tuned model's samples
METRICS = ("accuracy", "ece", "brier", "auroc")
CASE_SAMPLES = 8
LONGEST = 600  # characters of a sample in a case
CASES_OF_A_KIND = 2
KINDS = {
    (False, True): "weighing by confidence is right, counting is wrong",
    (True, False): "counting is right, weighing by confidence is wrong",
    (True, True): "counting and weighing are both right",
    (False, False): "counting and weighing are both wrong",
}
"""The kinds of cases by (counting right, weighing right)."""
Judged = tuple[Response, Grade]


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


def cases(pool: Split, policies: Sequence[Policy], *, seed: int, **about: Any) -> list[Case]:
    """Return a few questions with their first samples, and what every strategy makes of these.

    Of the questions whose samples do not all give the same answer, two of each kind are drawn at
    random. `of` says how many there are of the kind, among `n` questions.

    Args:
        pool: the samples, of the model whose confidences come with them.
        policies: strategies that read these confidences, or none.
        seed: seed of the drawing.
        about: the fields of a `Case` that all of them share.
    """
    by_kind: dict[tuple[bool, bool], list[tuple[Question, list[Judged]]]] = {k: [] for k in KINDS}
    every = list(_first_samples(pool))
    for question, samples in every:
        votes, right = _votes(samples), _right(samples)
        if len({vote.answer for vote in votes}) > 1:
            counted, weighed = chosen(Majority(), votes), chosen(Weighted(), votes)
            by_kind[counted in right, weighed in right].append((question, samples))
    rng = np.random.default_rng(seed)
    found = []
    for kind, alike in by_kind.items():
        drawn = rng.permutation(len(alike))[:CASES_OF_A_KIND]
        of_kind = {"seed": seed, "why": KINDS[kind], "of": len(alike), "n": len(every)}
        for question, samples in (alike[at] for at in sorted(drawn)):
            found.append(_case(question, samples, policies, **about, **of_kind))
    return found


def _case(
    question: Question, samples: Sequence[Judged], policies: Sequence[Policy], **about: Any
) -> Case:
    votes, right = _votes(samples), _right(samples)
    made = [(each, decide(each.strategy, votes, len(votes))) for each in policies]
    return Case(
        **about,
        question=question.text,
        choices=question.choices,
        samples=tuple(_sample(*pair) for pair in samples),
        decisions=tuple(
            CaseDecision(
                strategy=each.name,
                estimator=each.estimator,
                threshold=getattr(each.strategy, "threshold", None),
                answer=decision.answer,
                correct=decision.answer in right,
                samples=decision.samples,
            )
            for each, decision in made
        ),
    )


def _votes(samples: Sequence[Judged]) -> list[Vote]:
    return [Vote(grade.answer, response.confidence) for response, grade in samples]


def _right(samples: Sequence[Judged]) -> set[str]:
    """Return the answers that count as right: those whose first sample does, as in a replay."""
    first: dict[str | None, bool] = {}
    for _, grade in samples:
        first.setdefault(grade.answer, grade.correct)
    return {answer for answer, correct in first.items() if correct and answer is not None}


def _first_samples(pool: Split) -> Iterator[tuple[Question, list[Judged]]]:
    """Yield each question with its first samples and their grades."""
    by_question: dict[str, list[Judged]] = {}
    for response, grade in zip(pool.responses.read(), pool.grades.read(), strict=True):
        if response.sample < CASE_SAMPLES:
            by_question.setdefault(response.question_id, []).append((response, grade))
    for question in pool.questions.read():
        yield question, by_question[question.id]


def _sample(response: Response, grade: Grade) -> CaseSample:
    text = response.text.strip()
    return CaseSample(
        text=text if len(text) <= LONGEST else text[: LONGEST - 1] + "…",
        answer=grade.answer,
        correct=grade.correct,
        confidence=response.confidence,
        tokens=len(response.token_ids),
    )
