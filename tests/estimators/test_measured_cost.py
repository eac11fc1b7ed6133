"""What each estimator takes from the model, as the meter sees it."""

from __future__ import annotations

from typing import Any

import pytest
from made_up_samples import Splits, drawn, response, samples

from grace.engines.transformers import TransformersEngine
from grace.estimators.recalibrated import load_estimator
from grace.pipeline.stages.cost import Meter, MeteredEngine, watched

COUNT = 12


def made_up() -> Any:
    return samples(
        [response(i) for i in range(COUNT)],
        correct=[i % 2 == 0 for i in range(COUNT)],
        draws=[drawn(*["paris", "rome"] * 5)] * COUNT,
    )


@pytest.mark.parametrize(
    ("name", "options", "access", "requests"),
    [
        ("p_true", {}, "logprobs", COUNT),
        ("p_true_tuned", {}, "logprobs", COUNT),
        ("p_true_supervised", {}, "hidden states", COUNT),
        ("loglik", {}, "logprobs", 0),
        ("deepconf_logistic", {}, "logprobs", 0),
        ("verbal", {}, "text", COUNT),
        ("probe", {}, "hidden states", COUNT),
        ("probe_tokens", {}, "hidden states", COUNT),
        ("actcab", {}, "hidden states", COUNT),
        ("deepconf", {}, "logprobs", 0),
        ("consistency", {}, "text", COUNT),
        ("semantic_entropy", {}, "text", COUNT),
    ],
)
def test_access_and_requests_are_what_it_needs(
    name: str, options: Any, access: str, requests: int, tiny: Any
):
    backbone = TransformersEngine(*tiny)
    engine = MeteredEngine(lambda: backbone, Meter())
    rated = made_up()
    fitted = load_estimator(name, options).fit(Splits(rated, rated), engine, 0)  # type: ignore[arg-type]
    meter = engine.meter = Meter()
    fitted.rate(watched(rated, meter, lambda count: None))
    assert (meter.access, meter.requests) == (access, requests)
