"""What the samples of a pool are like one by one: how right, how sure, and some in full."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from grace.metrics import evaluate, wqd
from grace.records import Grade, Question, Response, Vote
from grace.scaling import Pool
from grace.store import Split
from grace.strategies import Majority, Weighted

METRICS = ("ece", "brier", "auroc")
CASE_SAMPLES = 8
LONGEST = 600  # characters of a sample in a case
CASES = {
    (False, True): ("weighing by confidence is right, counting is wrong", 2),
    (True, False): ("counting is right, weighing by confidence is wrong", 1),
    (True, True): ("both are right", 1),
    (False, False): ("both are wrong", 1),
}
"""The kinds of cases by (counting right, weighing right), and how many are shown of each."""


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


def cases(pool: Split) -> list[dict[str, Any]]:
    """Return a few questions with their first samples, the first of each kind in the split."""
    left = {kind: count for kind, (_, count) in CASES.items()}
    found = []
    for question, samples in _first_samples(pool):
        votes = [Vote(grade.answer, response.confidence) for response, grade in samples]
        right = {grade.answer for _, grade in samples if grade.correct}
        counted, weighed = Majority().choose(votes), Weighted().choose(votes)
        kind = (counted in right, weighed in right)
        if left[kind] and len({vote.answer for vote in votes}) > 1:
            left[kind] -= 1
            found.append(
                {
                    "why": CASES[kind][0],
                    "question": question.text,
                    "choices": list(question.choices),
                    "counted": counted,
                    "weighed": weighed,
                    "samples": [_sample(*pair) for pair in samples],
                }
            )
    return found


def _first_samples(pool: Split) -> Iterator[tuple[Question, list[tuple[Response, Grade]]]]:
    """Yield each question with its first samples and their grades."""
    by_question: dict[str, list[tuple[Response, Grade]]] = {}
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
