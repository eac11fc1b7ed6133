"""Post-hoc calibration against scikit-learn, and on data where nothing can be fitted."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grace.calibration import (
    FLATTEST,
    OFFSET_SPREAD,
    SLOPE_SPREAD,
    Isotonic,
    LogOdds,
    Platt,
    Temperature,
    standard_error,
)
from grace.errors import UserInputError

MAPS = [Platt, Temperature, Isotonic]


def made_up(n=500, seed=0):
    rng = np.random.default_rng(seed)
    confidence = rng.beta(5, 1, n)
    return confidence, rng.random(n) < confidence**3


def log_loss(p, y):
    return -np.mean(np.log(np.clip(np.where(y, p, 1 - p), 1e-12, 1)))


def test_a_standard_error_counts_a_group_once():
    values = np.random.default_rng(0).normal(size=60)
    usual = values.std(ddof=1) / np.sqrt(60)
    assert standard_error(values, range(60)) == pytest.approx(usual)
    assert standard_error(np.repeat(values, 4), np.repeat(range(60), 4)) == pytest.approx(usual)
    assert standard_error(values, ["one"] * 60) == np.inf


def test_platt_by_log_loss_equals_unpenalised_logistic_regression():
    from sklearn.linear_model import LogisticRegression

    confidence, correct = made_up()
    theirs = LogisticRegression(C=np.inf, tol=1e-10).fit(confidence[:, None], correct)
    ours = Platt.fit(confidence, correct, loss="log")
    assert (ours.a, ours.b) == pytest.approx((theirs.coef_[0, 0], theirs.intercept_[0]), rel=1e-3)


@pytest.mark.parametrize("slopes", [(2.0,), (0.4,), (0.0,), (-3.0,), (0.1, 1.5), (-2.0, 0.7)])
@pytest.mark.parametrize("answers", [12, 3_000])
def test_a_map_of_the_log_odds_is_the_minimum_that_scipy_finds(slopes, answers):
    from scipy.optimize import minimize
    from scipy.special import expit

    rng = np.random.default_rng(answers)
    parts = rng.normal(0.5, 1.5, (len(slopes), answers))
    correct = rng.random(answers) < expit(np.array(slopes) @ parts - 0.5)
    spread = np.array([1.0, SLOPE_SPREAD])[-len(slopes) :]

    def loss(point):
        z = point[:-1] @ parts + point[-1]
        prior = (((point[:-1] - 1) / spread) ** 2).sum() + (point[-1] / OFFSET_SPREAD) ** 2
        return (np.logaddexp(0, z) - correct * z).sum() + prior / 2

    bounds = [(FLATTEST, 50)] * len(slopes) + [(-50, 50)]
    options = {"ftol": 1e-15, "gtol": 1e-8}
    start = [1.0] * len(slopes) + [0.0]
    theirs = minimize(loss, start, method="L-BFGS-B", bounds=bounds, options=options)
    ours = LogOdds.fit(parts, correct, spread)
    assert loss(np.array([*ours.a, ours.b])) <= theirs.fun + 1e-9
    assert (*ours.a, ours.b) == pytest.approx(theirs.x, abs=1e-4)
    assert ours.transform(parts) == pytest.approx(expit(ours.a @ parts + ours.b), rel=1e-12)


def test_platt_by_mse_leaves_a_local_minimum_for_a_steeper_one():
    confidence, correct = [0.7, 0.8, 0.9, 0.5, 0.5, 0.5], [1, 0, 0, 1, 0, 1]
    fitted = Platt.fit(confidence, correct).transform(confidence)
    assert np.square(fitted - correct).mean() == pytest.approx(1 / 6, abs=1e-6)  # 2/3 to .7, then 0


def test_platt_by_mse_is_at_a_minimum_of_the_squared_error():
    confidence, correct = made_up()
    fitted = Platt.fit(confidence, correct)

    def error(a, b):
        return np.mean((Platt(a, b).transform(confidence) - correct) ** 2)

    best = error(fitted.a, fitted.b)
    grid = [error(a, b) for a in np.linspace(-20, 30, 101) for b in np.linspace(-20, 20, 81)]
    assert best <= min(grid)
    for da, db in [(1e-3, 0), (-1e-3, 0), (0, 1e-3), (0, -1e-3)]:
        assert error(fitted.a + da, fitted.b + db) >= best - 1e-12
    assert best <= np.mean(
        (Platt.fit(confidence, correct, loss="log").transform(confidence) - correct) ** 2
    )


def test_temperature_is_at_the_maximum_likelihood():
    confidence, correct = made_up()
    fitted = Temperature.fit(confidence, correct)
    losses = [
        log_loss(Temperature(t).transform(confidence), correct)
        for t in np.geomspace(0.01, 100, 999)
    ]
    assert log_loss(fitted.transform(confidence), correct) <= min(losses)
    assert fitted.temperature > 1  # the data are overconfident


@pytest.mark.parametrize("round_to", [1, 2, 15])
def test_isotonic_equals_scikit_learn(round_to):
    from sklearn.isotonic import IsotonicRegression

    confidence, correct = made_up()
    confidence = confidence.round(round_to)
    theirs = IsotonicRegression(out_of_bounds="clip").fit(confidence, correct.astype(float))
    at = np.linspace(0, 1, 301)
    np.testing.assert_allclose(
        Isotonic.fit(confidence, correct).transform(at), theirs.predict(at), atol=1e-12
    )


@given(
    st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=30),
    st.sampled_from([Temperature, Isotonic]),
)
@settings(max_examples=60, deadline=None)
def test_maps_never_reverse_an_order_and_stay_in_range(rows, kind):
    confidence, correct = zip(*rows, strict=True)
    mapped = kind.fit(confidence, correct).transform(np.linspace(0, 1, 101))
    assert np.all(np.diff(mapped) >= -1e-12) and mapped.min() >= 0 and mapped.max() <= 1


@pytest.mark.parametrize("kind", MAPS)
@pytest.mark.parametrize(
    ("confidence", "correct"),
    [
        ([0.7] * 8, [True] * 6 + [False] * 2),
        ([0.1, 0.5, 0.9], [True] * 3),
        ([0.1, 0.5, 0.9], [False] * 3),
        ([0.0, 1.0, 0.0, 1.0], [False, True, False, True]),
        ([0.0, 1.0], [True, False]),
        ([0.5], [True]),
        ([0.5] * 4, [True, False] * 2),
        ([1.0] * 5, [True, True, True, True, False]),
    ],
)
def test_degenerate_data_give_a_finite_map(kind, confidence, correct):
    fitted = kind.fit(confidence, correct)
    mapped = fitted.transform([0.0, 0.25, 1.0])
    assert np.all(np.isfinite(mapped)) and np.all((mapped >= 0) & (mapped <= 1))
    for value in dataclasses.astuple(fitted):
        assert np.all(np.isfinite(value))


def test_separable_labels_are_separated():
    fitted = Platt.fit([0.1, 0.2, 0.8, 0.9], [False, False, True, True])
    assert fitted.transform([0.1, 0.2, 0.8, 0.9]) == pytest.approx([0, 0, 1, 1], abs=1e-3)


@pytest.mark.parametrize("kind", MAPS)
@pytest.mark.parametrize(
    ("confidence", "correct", "told"),
    [
        ([], [], "0 responses to evaluate"),
        ([0.5], [True, False], "same length"),
        ([1.5], [True], r"confidence\[0\] is 1.5"),
        ([0.5, np.nan], [True, False], r"confidence\[1\] is nan"),
        ([0.5], [3], r"correct\[0\] is 3"),
    ],
)
def test_unusable_input_is_refused_with_the_value(kind, confidence, correct, told):
    with pytest.raises(UserInputError, match=told):
        kind.fit(confidence, correct)
