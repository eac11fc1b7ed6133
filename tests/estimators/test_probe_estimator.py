"""The ridge probe as an estimator, against scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from made_up_samples import ScriptedEngine, Splits, response, samples

from grace.errors import DataError
from grace.estimators import Samples, load_estimator
from grace.probe import LAMBDAS
from grace.probe.features import LIKELIHOOD_FEATURES, likelihood_features

RNG = np.random.default_rng(0)
STATES_ND = RNG.normal(size=(120, 5)) * [1, 2, 5, 1, 1] + [0, 3, 0, 0, -1]
CORRECT = list(STATES_ND[:, 0] + RNG.normal(size=120) > 0)
NOTHING = samples([])


def states(numbers: Any) -> Any:
    return STATES_ND[list(numbers)]


def part(numbers: range, **kind: Any) -> Samples:
    return samples(
        [response(i, logprobs=(-0.01 * i,), **kind) for i in numbers],
        correct=[bool(CORRECT[i]) for i in numbers],
    )


def rate(train: Samples, test: Samples, **options: Any) -> list[Any]:
    known = Splits(train, NOTHING)
    fitted = load_estimator("probe", options).fit(known, ScriptedEngine(states=states), 0)
    return fitted.rate(test)


def ridge(train_ND: Any, test_ND: Any, lam: float) -> Any:
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), Ridge(alpha=lam * len(train_ND)))
    return np.clip(model.fit(train_ND, CORRECT[: len(train_ND)]).predict(test_ND), 0, 1)


@pytest.mark.parametrize(("name", "power"), [("mean", 1), ("last", 2)])
def test_it_is_scikit_learns_ridge_at_one_of_the_penalties(name: str, power: int):
    values = rate(part(range(80)), part(range(80, 120)), features=[name])
    rows_ND = STATES_ND**power
    distances = [np.abs(ridge(rows_ND[:80], rows_ND[80:], lam) - values).max() for lam in LAMBDAS]
    assert min(distances) < 1e-5
    assert min(values) >= 0 and max(values) <= 1


def test_likelihoods_alone_need_no_hidden_states():
    engine = ScriptedEngine()
    fitted = load_estimator("probe", {"features": ["likelihood"]}).fit(
        Splits(part(range(80)), NOTHING), engine, 0
    )
    assert fitted.trained_parameters == len(LIKELIHOOD_FEATURES) + 1
    assert len(set(fitted.rate(part(range(80, 90))))) > 1


def test_cut_responses_have_no_value_and_cost_no_forward():
    engine = ScriptedEngine(states=states)
    fitted = load_estimator("probe").fit(Splits(part(range(80)), NOTHING), engine, 0)
    assert fitted.trained_parameters == 2 * 5 + len(LIKELIHOOD_FEATURES) + 1
    before = engine.rows_of_states
    assert fitted.rate(part(range(80, 90), cut=True)) == [None] * 10
    assert engine.rows_of_states == before


def test_few_training_questions_lower_the_folds():
    picked = [CORRECT.index(True), CORRECT.index(False)]
    two = samples([response(i) for i in picked], correct=[True, False])
    assert len(rate(two, part(range(80, 90)))) == 10


@pytest.mark.parametrize(("right", "says"), [(True, "right"), (False, "wrong")])
def test_equal_labels_are_refused(right: bool, says: str):
    train = samples([response(i) for i in range(5)], correct=[right] * 5)
    with pytest.raises(DataError, match=f"all 5 training responses are {says}"):
        rate(train, NOTHING)


def test_answers_to_one_question_are_refused():
    train = samples([response(0), response(0)], correct=[True, False])
    with pytest.raises(DataError, match="at least 2 training questions"):
        rate(train, NOTHING)


def test_likelihood_features_by_hand():
    named = dict(zip(LIKELIHOOD_FEATURES, likelihood_features([-1.0, -3.0], None), strict=True))
    assert named["mean_logprob"] == -2 and named["last_logprob"] == -3 and named["cut"] == 1
    assert named["mean_prob"] == pytest.approx((np.exp(-1) + np.exp(-3)) / 2)
    assert named["end_logprob"] == -20
