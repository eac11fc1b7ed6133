"""Consistency and semantic entropy of further samples: numbers by hand and by scipy."""

from __future__ import annotations

from typing import Any

import pytest
from made_up_samples import ScriptedEngine, Splits, drawn, response, samples

from grace.errors import ConfigError
from grace.estimators import Samples
from grace.estimators.agreement import cluster
from grace.estimators.recalibrated import load_estimator

NOTHING = samples([])


def rate(name: str, rated: Samples, **options: Any) -> list[Any]:
    fitted = load_estimator(name, options).fit(Splits(NOTHING, NOTHING), ScriptedEngine(), 0)
    return fitted.rate(rated)


def one(*answers: str | None, answer: str | None = "paris", **kind: Any) -> Samples:
    return samples([response(**kind)], answers=[answer], draws=[drawn(*answers)])


def test_consistency_is_the_share_of_samples_that_agree():
    assert rate("consistency", one("paris", "rome", "paris", None), samples=4) == [0.5]
    assert rate("consistency", one("rome", "rome"), samples=2) == [0.0]
    assert rate("consistency", one("paris", "rome", "rome"), samples=1) == [1.0]


def test_answers_alike_by_rouge_agree_from_the_threshold_on():
    rated = one("george eliot", "t s eliot", "jane austen", answer="eliot")  # F1 2/3, 1/2, 0
    for threshold, share in ((0.0, 0), (0.6, 1 / 3), (0.5, 2 / 3)):
        values = rate("consistency", rated, samples=3, rouge_threshold=threshold)
        assert values == [pytest.approx(share)]


def test_consistency_of_no_answer_or_a_cut_response_is_no_value():
    assert rate("consistency", one(None, None, answer=None), samples=2) == [None]
    assert rate("consistency", one("paris", "paris", cut=True), samples=2) == [None]


@pytest.mark.parametrize(
    ("answers", "value"),
    [
        (("a", "a", "a", "a"), 1.0),
        (("a", "b", "c", "d"), 0.0),
        (("a", "a", "b", "b"), 0.5),  # H = ln 2 of ln 4
        (("a", "a", "b", None), 0.25),  # H = 1.5 ln 2
        ((None, None, None, None), 0.0),  # no two of them agree
    ],
)
def test_semantic_entropy_of_counts_by_hand(answers: tuple[str | None, ...], value: float):
    assert rate("semantic_entropy", one(*answers), samples=4) == [pytest.approx(value)]


def test_alike_answers_are_one_cluster_from_the_threshold_on():
    answers = ["george eliot", "eliot", "t s eliot", "jane austen", None, None]
    assert cluster(answers) == [0, 1, 2, 3, 4, 5]
    assert cluster(answers, 0.5) == [0, 0, 1, 2, 3, 4]  # two of three words in common
    assert cluster(answers, 0.7) == [0, 1, 2, 3, 4, 5]


def test_different_numbers_are_never_one_cluster():
    numbers = ["1.5", "2.5", "-5", "5", "0.25", "1.5"]
    assert cluster(numbers, 0.3) == [0, 1, 2, 3, 4, 0]


@pytest.mark.parametrize("name", ["consistency", "semantic_entropy"])
def test_responses_without_further_samples_are_refused_with_what_to_do(name: str):
    rated = one("rome")
    alone = Samples(**{n: getattr(rated, n) for n in Samples.__slots__ if n != "draw"})
    with pytest.raises(ConfigError, match="with 10 further samples of its question"):
        rate(name, alone)
