"""Estimators on hidden states of the backbone: rows without evidence, and supervised P(True)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from made_up_samples import Splits, response, samples

from grace.engines import Features
from grace.estimators import asked_by, rated_model
from grace.estimators.recalibrated import load_estimator
from grace.evidence import sigmoid
from grace.probe.logistic import fit_logistic

RNG = np.random.default_rng(0)
COUNT, WIDTH = 60, 8
STATES = {name: RNG.normal(size=(COUNT, WIDTH)).astype(np.float32) for name in ("a", "b", "c")}
DIRECTION = RNG.normal(size=WIDTH)
ROWS = [response(n, f"city {n}", cut=n == 7) for n in range(COUNT)]
ENDED = [n for n in range(COUNT) if n != 7]


class Reads:
    """States by the number that the response is, or that stands in the prompt."""

    def __init__(self, tokenizer: Any = None) -> None:
        self.tokenizer = tokenizer
        self.seen: list[Any] = []

    def features(self, prompts: Any, responses: Any, layer: int = 0) -> Features:
        self.seen.append((prompts, responses))
        rows = [
            ids[0] if ids else int(self.tokenizer.decode(p).rpartition("city ")[2].split()[0])
            for p, ids in zip(prompts, responses, strict=True)
        ]
        return Features(*(STATES[name][rows] ** (1 + layer) for name in "abc"))

    def confidences(self, prompts: Any, responses: Any) -> list[float]:
        return [ids[0] / COUNT for ids in responses]


def known(state_ND: Any) -> Any:
    right = state_ND @ DIRECTION + RNG.normal(0, 0.5, COUNT) > 0
    rows = samples(ROWS, correct=right.tolist())
    return Splits(rows, samples([]))


def expected(given: Any, *states: Any) -> list[float]:
    right = np.array(given.train.correct)[ENDED]
    groups = [given.train.questions[n].id for n in ENDED]
    made = fit_logistic([state_ND[ENDED] for state_ND in states], right, groups)
    limit = np.log(len(ENDED) + 1)
    parts = zip(states, made.weights, strict=True)
    logits = sum(state_ND[ENDED] @ weights for state_ND, weights in parts) + made.bias
    logits = np.clip(logits, -limit, limit)
    return [sigmoid(value) for value in logits.tolist()]


def test_the_probe_is_a_logistic_regression_on_all_three_states():
    given = known(STATES["a"] + STATES["b"] - STATES["c"])
    made = load_estimator("probe", {"layers": [2]}).fit(given, Reads(), 0)  # type: ignore[arg-type]
    values = made.rate(given.train)
    assert values[7] is None and made.trained_parameters == 3 * WIDTH + 1
    states = (STATES[name] ** 3 for name in "bca")  # the last, the prompt's, the answer's mean
    assert [values[n] for n in ENDED] == pytest.approx(expected(given, *states), abs=1e-5)


def test_supervised_p_true_reads_the_state_in_which_the_verdict_is_given(tokenizer: Any):
    given, engine = known(STATES["b"]), Reads(tokenizer)
    made = load_estimator("p_true_supervised").fit(given, engine, 0)  # type: ignore[arg-type]
    values = made.rate(given.train)
    assert values[7] is None
    assert [values[n] for n in ENDED] == pytest.approx(expected(given, STATES["b"]), abs=1e-6)
    prompts, responses = engine.seen[0]
    assert len(prompts) == len(ENDED) and {tuple(ids) for ids in responses} == {()}
    text = tokenizer.decode(prompts[0])
    assert text.endswith("The possible answer is:<|im_end|>\n<|im_start|>assistant\n")


def test_grace_rates_the_backbones_answers_with_the_tuned_model():
    estimator = load_estimator("grace_base")
    assert (rated_model(estimator), asked_by(estimator)) == ("base", "tuned")
    assert asked_by(load_estimator("grace_base+platt")) == "tuned"
    assert asked_by(load_estimator("platt")) == "base"
    values = estimator.fit(known(STATES["a"]), Reads(), 0).rate(samples(ROWS[6:9]))  # type: ignore[arg-type]
    assert values == [6 / COUNT, None, 8 / COUNT]
