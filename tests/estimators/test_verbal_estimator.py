"""Verbalised confidence: what counts as a number, and what the model is asked."""

from __future__ import annotations

from typing import Any

import pytest
from made_up_samples import ScriptedEngine, Splits, response, samples

from grace.estimators.recalibrated import load_estimator
from grace.estimators.verbal import stated_confidence

NOTHING = samples([])


def rate(texts: list[str], engine: ScriptedEngine, **options: Any) -> list[Any]:
    fitted = load_estimator("verbal", options).fit(Splits(NOTHING, NOTHING), engine, 0)
    return fitted.rate(samples([response(i, text) for i, text in enumerate(texts)]))


@pytest.mark.parametrize(
    ("reply", "value"),
    [
        ("85%", 0.85),
        ("85", 0.85),
        ("Confidence: 72.5 percent", 0.725),
        ("between 60% and 80%", 0.6),
        ("100 %", 1.0),
        ("0", 0.0),
        ("1", 0.01),
        ("0.9", 0.9),  # asked for percent, but nobody means 0.9 %
        ("0.9%", 0.009),
        ("1.5", 0.015),
        ("101%", None),
        ("1000", None),
        ("-5%", None),
        ("very sure", None),
        ("", None),
        ("My confidence in the answer (0-100 %): 85%", 0.85),
        ("On a scale of 0 to 100, I would say 70%", 0.7),
        ("(0-100 %)", None),
        ("9/10", 0.9),
        ("8 out of 10", 0.8),
        ("I give it 85/100.", 0.85),
        ("0 to 1000", 0.0),
        ("0,9", 0.9),
        ("87,5 %", 0.875),
        ("9,5/10", 0.95),
        ("1,000", 0.01),
    ],
)
def test_a_reply_to_the_percent_prompt_is_read_in_percent(reply: str, value: float | None):
    assert stated_confidence(reply, percent=True) == pytest.approx(value)


@pytest.mark.parametrize(
    ("reply", "value"),
    [
        ("0.85", 0.85),
        ("Probability: .5", 0.5),
        ("1.0", 1.0),
        ("1", 1.0),
        ("90%", 0.9),
        ("0.5 %", 0.005),
        ("Probability (between 0.0 and 1.0): 0.9", 0.9),
        ("0 to 1.5", 0.0),
        ("85", None),
        ("1.2", None),
        ("-0.3", None),
        ("Probability: 0,85", 0.85),
        ("1,0", 1.0),
    ],
)
def test_a_reply_to_the_probability_prompt_is_read_as_a_fraction(reply: str, value: float | None):
    assert stated_confidence(reply, percent=False) == pytest.approx(value)


def test_every_reply_goes_to_its_own_response(tokenizer: Any):
    engine = ScriptedEngine(tokenizer, replies=["10%", "I do not know", "30%"])
    assert rate(["a", "b", "c"], engine) == [0.1, None, 0.3]


def test_a_reply_without_a_number_counts_as_half_where_asked_for(tokenizer: Any):
    engine = ScriptedEngine(tokenizer, replies=["no idea", "300%", "40%"])
    assert rate(["a", "b", "c"], engine, unparsed="half") == [0.5, 0.5, 0.4]


def test_cut_and_empty_responses_are_not_asked_about(tokenizer: Any):
    engine = ScriptedEngine(tokenizer, replies=["40%"])
    fitted = load_estimator("verbal").fit(Splits(NOTHING, NOTHING), engine, 0)
    assert fitted.rate(samples([response(0, cut=True), response(1, ""), response(2)])) == [
        None,
        None,
        0.4,
    ]
    assert len(engine.asked) == 1


def test_one_turn_or_a_second_turn(tokenizer: Any):
    engine = ScriptedEngine(tokenizer, replies=["1%"])
    rate(["Paris"], engine)
    rate(["Paris"], engine, template="percent_turn")
    one, second = map(tokenizer.decode, engine.asked)
    ask = "Please provide your confidence in the answer only in percent (0-100 %):<|im_end|>\n"
    assert one == f"<|im_start|>user\nWhat is q0? Paris .\n{ask}<|im_start|>assistant\n"
    assert second.endswith(
        "What is q0?<|im_end|>\n<|im_start|>assistant\nParis<|im_end|>\n"
        f"<|im_start|>user\n{ask}<|im_start|>assistant\n"
    )
