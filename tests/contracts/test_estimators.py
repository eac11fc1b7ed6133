"""What every estimator promises; a new file in `grace/estimators` is found and held to it.

The responses are made up: peaked and flat ones, an empty one, one that was cut, right and wrong
ones in every split. Where an estimator asks for the backbone, it gets a tiny random one.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import pytest

from grace.engines import Engine
from grace.estimators import Estimate, Estimator, Evidence, Samples
from grace.plugins import available, load
from grace.records import Question, Response, response_id

SIZES = {"train": 30, "validation": 12, "test": 9}
CUT, EMPTY = 3, 5  # positions in every split


@pytest.fixture(params=available("grace.estimators"))
def estimator(request: pytest.FixtureRequest) -> Estimator:
    made: Estimator = load("grace.estimators", request.param)
    return made


@pytest.fixture
def backbone(tiny: Any) -> Callable[[], Engine]:
    from grace.engines.transformers import TransformersEngine

    engine = TransformersEngine(*tiny)
    return lambda: engine


@pytest.fixture
def evidence(tiny: Any, backbone: Callable[[], Engine]) -> Evidence:
    splits = {name: samples(name, size, tiny[1]) for name, size in SIZES.items()}
    return Evidence(**splits, engine=backbone)


def samples(split: str, size: int, tokenizer: Any) -> Samples:
    dice = random.Random(split)
    asked = [
        Question(f"{split}-{n}", "trivia_qa", f"What is {n}?", (f"thing {n}",)) for n in range(size)
    ]
    return Samples(
        questions=asked,
        prompts=[tokenizer.encode(question.text) for question in asked],
        responses=[response(q, n, tokenizer, dice) for n, q in enumerate(asked)],
        correct=[n % 3 != 0 for n in range(size)],
    )


def response(question: Question, n: int, tokenizer: Any, dice: random.Random) -> Response:
    ids = [] if n == EMPTY else tokenizer.encode(f"thing {n} " * (1 + n % 4))
    cut = n == CUT
    return Response(
        id=response_id(question.id, 0),
        question_id=question.id,
        sample=0,
        text=tokenizer.decode(ids),
        token_ids=tuple(ids),
        finish_reason="length" if cut else "stop",
        logprobs=tuple(-dice.random() * (1 + n % 5) for _ in ids),
        end_logprob=None if cut else -dice.random(),
        confidence=None if cut else dice.random(),
    )


def only(part: Samples, row: int) -> Samples:
    """Return one row of the samples."""
    names = [field.name for field in dataclasses.fields(part)]
    return Samples(**{name: [getattr(part, name)[row]] for name in names})


def test_the_name_is_the_file_and_it_says_whose_answers_it_rates(
    estimator: Estimator, request: pytest.FixtureRequest
):
    assert estimator.name.replace("-", "_") == request.node.callspec.params["estimator"]
    assert estimator.answers in ("base", "tuned")
    assert (type(estimator).__doc__ or "").strip()


def test_every_response_gets_a_value_in_range_or_none(estimator: Estimator, evidence: Evidence):
    estimate = estimator.estimate(evidence)
    assert isinstance(estimate, Estimate)
    assert len(estimate.confidences) == len(evidence.test.responses)
    for value in estimate.confidences:
        assert value is None or (type(value) is float and 0 <= value <= 1)
    assert sum(value is not None for value in estimate.confidences) >= SIZES["test"] - 2
    assert type(estimate.extra_forward_tokens) is int and estimate.extra_forward_tokens >= 0


def test_the_same_evidence_gives_the_same_values(estimator: Estimator, evidence: Evidence):
    assert estimator.estimate(evidence) == estimator.estimate(evidence)


def test_a_response_is_rated_alone_as_among_others(estimator: Estimator, evidence: Evidence):
    together = estimator.estimate(evidence).confidences
    for i, value in enumerate(together):
        one = dataclasses.replace(evidence, test=only(evidence.test, i))
        (alone,) = estimator.estimate(one).confidences
        assert (alone is None) == (value is None)
        assert alone == pytest.approx(value, abs=1e-5)


def test_the_truth_about_the_test_answers_is_not_used(estimator: Estimator, evidence: Evidence):
    test = evidence.test
    lied = dataclasses.replace(test, correct=[not correct for correct in test.correct])
    assert (
        estimator.estimate(dataclasses.replace(evidence, test=lied)).confidences
        == estimator.estimate(evidence).confidences
    )
