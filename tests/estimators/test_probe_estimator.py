"""The probes: logistic regressions on states of the layer that rates held-out answers best."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from made_up_samples import ScriptedEngine, Splits, response, samples

from grace.errors import DataError
from grace.estimators import Samples
from grace.estimators.probes import LIKELIHOOD_FEATURES, likelihood_features
from grace.estimators.recalibrated import load_estimator
from grace.metrics import auroc

COUNT = 400
RNG = np.random.default_rng(0)
TOLD_N, SAID_N = RNG.normal(size=(2, COUNT))  # what states and what log-probabilities tell
CORRECT = TOLD_N + SAID_N + 0.5 * RNG.normal(size=COUNT) > 0
NOISE_ND = RNG.normal(size=(COUNT, 5))
NOTHING = samples([])
TRAIN, TEST = range(200), range(200, COUNT)


class Layers(ScriptedEngine):
    """Layer 7 tells what the others do not."""

    def features(self, prompts: Any, responses: Any, layer: int = 0) -> Any:
        self._states = lambda rows: NOISE_ND[rows] + (layer == 7) * TOLD_N[rows][:, None]
        return super().features(prompts, responses)


def part(numbers: range, **kind: Any) -> Samples:
    logprobs = [-np.exp(-SAID_N[i]) / 5 for i in numbers]
    return samples(
        [response(i, logprobs=(p, p), **kind) for i, p in zip(numbers, logprobs, strict=True)],
        correct=CORRECT[list(numbers)].tolist(),
    )


def rated(name: str, **options: Any) -> float:
    fitted = load_estimator(name, options).fit(Splits(part(TRAIN), NOTHING), Layers(), 0)  # type: ignore[arg-type]
    values = fitted.rate(part(TEST))
    assert all(value is not None and 0 <= value <= 1 for value in values)
    return auroc(np.array(values, dtype=float), CORRECT[list(TEST)])


def test_it_reads_the_layer_that_tells_most_and_with_tokens_what_these_tell_too() -> None:
    last, best = rated("probe"), rated("probe", layers=[0, 4, 7])
    assert best == pytest.approx(rated("probe", layers=[7]), abs=1e-6)
    assert last < 0.65 < 0.72 < best < rated("probe_tokens", layers=[0, 4, 7]) - 0.1


def test_cut_responses_have_no_value_and_cost_no_forward() -> None:
    engine = Layers()
    fitted = load_estimator("probe_tokens").fit(Splits(part(TRAIN), NOTHING), engine, 0)  # type: ignore[arg-type]
    assert fitted.trained_parameters == 3 * 5 + len(LIKELIHOOD_FEATURES) + 1
    before = engine.rows_of_states
    assert fitted.rate(part(range(80, 90), cut=True)) == [None] * 10
    assert engine.rows_of_states == before


@pytest.mark.parametrize(("right", "says"), [(True, "right"), (False, "wrong")])
def test_equal_labels_are_refused(right: bool, says: str) -> None:
    train = samples([response(i) for i in range(5)], correct=[right] * 5)
    with pytest.raises(DataError, match=f"all 5 training responses are {says}"):
        load_estimator("probe").fit(Splits(train, NOTHING), Layers(), 0)  # type: ignore[arg-type]


def test_answers_to_one_question_are_refused() -> None:
    train = samples([response(0), response(0)], correct=[True, False])
    with pytest.raises(DataError, match="at least 2 training questions"):
        load_estimator("probe").fit(Splits(train, NOTHING), Layers(), 0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("logprobs", "end"),
    [([], None), ([], -0.1), ([-np.inf], -np.inf), ([np.nan, -1.0], np.nan), ([0.0], 0.0)],
)
def test_likelihood_features_are_always_finite(logprobs: list[float], end: float | None) -> None:
    features = likelihood_features(logprobs, end)
    assert features.shape == (len(LIKELIHOOD_FEATURES),)
    assert np.isfinite(features).all()


def test_likelihood_features_by_hand() -> None:
    named = dict(zip(LIKELIHOOD_FEATURES, likelihood_features([-1.0, -3.0], None), strict=True))
    assert named["mean_logprob"] == -2 and named["last_logprob"] == -3 and named["cut"] == 1
    assert named["mean_prob"] == pytest.approx((np.exp(-1) + np.exp(-3)) / 2)
    assert named["end_logprob"] == -20
    assert named["min_logprob"] == -3 and named["sum_logprob"] == -4 and named["end_prob"] < 1e-8
    assert likelihood_features([-1.0], -0.5)[-3:] == pytest.approx([-0.5, np.exp(-0.5), 0])
