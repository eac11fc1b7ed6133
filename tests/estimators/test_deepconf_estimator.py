"""The least sure stretch of a response, by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
from made_up_samples import ScriptedEngine, Splits, response, samples

from grace.estimators.recalibrated import load_estimator

NOTHING = samples([])
LOGPROBS = (-0.1, -2.0, -0.4, -0.1)  # and the end, -0.3


def rate(*responses: Any, **options: Any) -> list[Any]:
    fitted = load_estimator("deepconf", options).fit(Splits(NOTHING, NOTHING), ScriptedEngine(), 0)
    return fitted.rate(samples(responses))


@pytest.mark.parametrize(
    ("options", "mean"),
    [
        ({"window": 1}, -2.0),
        ({"window": 2}, -1.2),  # of -1.05, -1.2, -0.25, -0.2
        ({"window": 9}, -2.9 / 5),
    ],
)
def test_it_is_the_geometric_mean_probability_of_the_stretch(options: Any, mean: float):
    (value,) = rate(response(logprobs=LOGPROBS, end=-0.3), **options)
    assert value == pytest.approx(math.exp(mean))


def test_a_window_longer_than_the_response_is_its_likelihood():
    one = response(logprobs=LOGPROBS, end=-0.3)
    likelihood = load_estimator("likelihood").fit(Splits(NOTHING, NOTHING), ScriptedEngine(), 0)
    assert rate(one, window=2048) == pytest.approx(likelihood.rate(samples([one])))


def test_a_cut_response_has_no_value_and_an_empty_one_has_its_end():
    values = rate(response(cut=True), response(logprobs=(), end=-0.5))
    assert values == [None, pytest.approx(math.exp(-0.5))]
