"""What the samples of a pool are like one by one: how right, how sure, and some in full."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from grace.metrics import evaluate, wqd
from grace.records import Grade, Question, Response, Vote
from grace.scaling import Pool
from grace.store import Split
from grace.strategies import Majority, Policy, Weighted, chosen, decide

Judged = tuple[Response, Grade]
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


def describe(pool: Pool) -> dict[str, Any]:
    """Return the accuracy of single samples, and how good their confidences are.

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
        confidences.append({"estimator": name, "n": len(value_N), **known})
    return {
        "n": pool.num_questions,
        "samples": pool.num_samples,
        "accuracy": float(pool.correct_QS.mean()),
        "without_answer": float((pool.answer_QS < 0).mean()),
        "mean_tokens": float(pool.tokens_QS.mean()),
        "confidences": confidences,
    }


def cases(pool: Split, policies: Sequence[Policy], seed: int) -> list[dict[str, Any]]:
    """Return a few questions with their first samples, and what every strategy makes of these.

    Of the questions whose samples do not all give the same answer, two of each kind are drawn at
    random. `of` says how many there are of the kind, among `n` questions.

    Args:
        pool: the samples, of the model whose confidences come with them.
        policies: strategies that read these confidences, or none.
        seed: seed of the drawing.
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
        about = {"why": KINDS[kind], "of": len(alike), "n": len(every)}
        for question, samples in (alike[at] for at in sorted(drawn)):
            found.append(about | _case(question, samples, policies))
    return found


def _case(
    question: Question, samples: Sequence[Judged], policies: Sequence[Policy]
) -> dict[str, Any]:
    votes, right = _votes(samples), _right(samples)
    made = [(each, decide(each.strategy, votes, len(votes))) for each in policies]
    return {
        "question": question.text,
        "choices": list(question.choices),
        "samples": [_sample(*pair) for pair in samples],
        "decisions": [
            {
                "strategy": each.name,
                "estimator": each.estimator,
                "threshold": getattr(each.strategy, "threshold", None),
                "answer": decision.answer,
                "correct": decision.answer in right,
                "samples": decision.samples,
            }
            for each, decision in made
        ],
    }


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


def _sample(response: Response, grade: Grade) -> dict[str, Any]:
    text = response.text.strip()
    return {
        "text": text if len(text) <= LONGEST else text[: LONGEST - 1] + "…",
        "answer": grade.answer,
        "correct": grade.correct,
        "confidence": response.confidence,
        "tokens": len(response.token_ids),
    }
