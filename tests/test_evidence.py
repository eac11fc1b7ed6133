import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from grace.calibration import LogOdds
from grace.cnf import log_odds
from grace.errors import ModelError
from grace.evidence import FEATURES, LOWEST, Evidence, along, confidence, features, reading, sigmoid
from grace.evidence.trace import TRACE_FEATURES
from grace.methods.grace.fit import fit_evidence
from grace.model.recalibrating import parts
from grace.probe.rows import SPREAD

EVIDENCE = Evidence(
    (2.0, 0.5, 0.1, -0.4, 1.5, 0.8, 0.6, 1.2), (-0.3, -0.9, -2.0, 0.7, 0.4, 0.6, 0.6, 0.5), 0.7
)
SLOPED = Evidence(EVIDENCE.weights, EVIDENCE.center, 0.7, 0.8)


@pytest.mark.parametrize("offset", [-6.0, -0.5, 0.0, 0.5, 6.0])
def test_evidence_equals_adding_to_the_logit_before_the_softmax(offset):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(200, 7, generator=generator, dtype=torch.float64) * 5
    moved = logits.clone()
    moved[:, 3] += offset
    shifted = Evidence((0.0,) * 8, (0.0,) * 8, offset)
    found = [
        confidence([(reading(float(p)),)], [], -0.3, shifted) for p in logits.log_softmax(-1)[:, 3]
    ]
    wanted = moved.softmax(-1)[:, 3].tolist()
    assert found == pytest.approx(wanted, abs=1e-6, rel=1e-5)


def test_log_odds_are_finite_and_differentiable_at_the_extremes():
    log_c = torch.tensor([-1e-12, -1e-3, -30.0, -80.0], dtype=torch.float64, requires_grad=True)
    out = log_odds(log_c)
    out.sum().backward()
    assert torch.isfinite(out).all() and torch.isfinite(log_c.grad).all()
    plain = [reading(value) for value in log_c.tolist()]
    assert plain == pytest.approx(out.tolist(), rel=1e-5)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("evidence", [None, EVIDENCE, SLOPED])
def test_step_by_step_and_whole_confidences_agree(evidence, count):
    generator = np.random.default_rng(1)
    for length in (0, 1, 4, 7):
        readings = generator.normal(0, 2, (length + 1, count)).tolist()
        logprobs = (-generator.exponential(1.0, length)).tolist()
        ends = (-generator.exponential(1.0, length + 1)).tolist()
        trace = along(readings, logprobs, ends, evidence)
        for k in range(length + 1):
            whole = confidence(readings[: k + 1], logprobs[:k], ends[k], evidence)
            assert trace[k] == pytest.approx(whole, abs=1e-12)


def test_each_reading_counts_in_its_place():
    readings = [(3.0, 0.2, 9.0), (-1.0, 7.0, 0.6), (0.5, 8.0, -0.2)]
    shift = SLOPED.of([-0.2, -0.7], -0.4)
    wanted = 0.8 * (0.5 + 0.2 + (0.6 - 0.2) / 2 + shift)  # the end, the prompt, the answer
    assert confidence(readings, [-0.2, -0.7], -0.4, SLOPED) == pytest.approx(sigmoid(wanted))
    empty = 0.8 * (3.0 + 0.2 + 9.0 + SLOPED.of([], -0.4))
    assert confidence(readings[:1], [], -0.4, SLOPED) == pytest.approx(sigmoid(empty))


def test_features_are_what_their_names_say():
    values = dict(zip(FEATURES, features([-0.5, -2.0, -0.1], -0.6), strict=True))
    assert values == pytest.approx(
        {
            "mean_logprob": -2.6 / 3,
            "min_logprob": -2.0,
            "sum_logprob": -2.6,
            "log_length": np.log(3),
            "min_prob": np.exp(-2.0),
            "first_prob": np.exp(-0.5),
            "last_prob": np.exp(-0.1),
            "likelihood": np.exp(-3.2 / 4),
        }
    )


def test_a_card_without_the_last_probability_gives_the_c_that_it_gave():
    weights, center = np.random.default_rng(0).normal(size=(2, 7)).tolist()
    names = [name for name in FEATURES if name != "last_prob"]
    familiar = {"near": 1.0, "weights": weights[::-1], "bias": 0.3}
    old = {"features": names, "weights": weights, "center": center, "bias": 0.2, "slope": 1.0}
    old |= {"low": [-9.0] * 7, "high": [9.0] * 7, "limit": 5.0, "familiar": familiar}
    old["fields"] = {"": {key: value for key, value in old.items() if key != "familiar"}}
    said = [-0.5, -2.0, -0.1]
    found = dict(zip(FEATURES, features(said, -0.6), strict=True))
    away = np.array([found[name] for name in names]) - center
    evidence = Evidence.from_dict(old)
    for one in (evidence, evidence.of_field("")):
        assert one.of(said, -0.6) == pytest.approx(0.2 + away @ weights)
    assert evidence.familiar is not None and len(evidence.familiar.weights) == len(FEATURES)
    far = confidence([(1.0, 0.5, 0.2, 1e9)], said, -0.6, evidence)
    strange = 0.2 + 0.3 + away @ (np.array(weights) + weights[::-1])
    assert far == pytest.approx(sigmoid(strange), abs=1e-6)
    again = Evidence.from_dict(evidence.to_dict())
    assert again == evidence and not again.outside(said)


def test_an_impossible_token_and_an_empty_response_stay_finite():
    assert features([float("-inf"), 0.0], -1.0)[:2] == (-10.0, -20.0)
    assert features([], -1.0) == (0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, np.exp(-1.0))
    assert features([], float("-inf"))[-1] == np.exp(-20.0)


def test_an_impossible_token_counts_the_same_however_the_evidence_is_computed():
    logprobs = [-0.5, float("-inf"), -400.0, -0.1]
    mild = replace(EVIDENCE, weights=tuple(weight / 100 for weight in EVIDENCE.weights))
    expected = mild.of([-0.5, LOWEST, LOWEST, -0.1], -0.2)
    stepwise = along([(0.0,)] * 5, logprobs, [-0.2] * 5, mild)[-1]
    assert abs(expected) < 5  # far from where every c is 0 or 1
    assert mild.of(logprobs, -0.2) == pytest.approx(expected)
    assert stepwise == pytest.approx(sigmoid(expected))


def test_fit_finds_what_logistic_regression_finds():
    rng = np.random.default_rng(0)
    x = np.array([features(-rng.exponential(0.7, n), -0.2) for n in rng.integers(1, 8, 4000)])
    y = rng.random(4000) < 1 / (1 + np.exp(-(1.0 + 2.0 * x[:, 0] + 0.4 * x[:, 1])))
    oracle = LogisticRegression(C=np.inf, max_iter=5000).fit(x, y)
    found = fit_evidence(x, y)
    shifts = [found.shift_of(row) for row in x]
    assert np.corrcoef(shifts, oracle.decision_function(x))[0, 1] > 0.995
    np.testing.assert_allclose(found.center, x.mean(0))


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_fitted_evidence_says_how_often_answers_are_right(share):
    rng = np.random.default_rng(1)
    logprobs = [-rng.exponential(0.7, n) for n in rng.integers(1, 8, 2000)]
    found = fit_evidence(
        np.array([features(row, -0.2) for row in logprobs]), rng.random(2000) < share
    )
    half = (reading(np.log(0.5)),)  # <CNF> as likely as EOS, and nothing else
    mean = np.mean([confidence([half], row, -0.2, found) for row in logprobs])
    assert mean == pytest.approx(share, abs=0.03)


def test_nonsense_gets_no_certainty_from_a_feature_that_was_rounding_noise():
    """The first token's probability was 1 up to rounding in training; elsewhere it is not."""
    rng = np.random.default_rng(2)
    phi = np.array([features(-rng.exponential(0.5, n), -0.2) for n in rng.integers(2, 9, 300)])
    noise = rng.normal(0, SPREAD / 100, len(phi))
    phi[:, FEATURES.index("first_prob")] = 1 - np.abs(noise)
    right = noise > 0
    found = fit_evidence(phi, right)
    assert found.weights[FEATURES.index("first_prob")] == 0
    nonsense = confidence([(0.0,)], [-18.0, -9.0, -14.0], -0.2, found)
    assert abs(nonsense - right.mean()) < 0.25


def test_answers_unlike_any_of_training_count_as_the_most_extreme_of_training():
    rng = np.random.default_rng(3)
    phi = np.array([features(-rng.exponential(0.5, n), -0.2) for n in rng.integers(2, 9, 500)])
    found = fit_evidence(phi, rng.random(500) < 1 / (1 + np.exp(-2 - 2 * phi[:, 0])))
    far, edge = [-19.0] * 3 + [9.0, 0.0, 0.0, 0.0, 0.0], phi.min(0)
    edge[FEATURES.index("log_length")] = phi.max(0)[FEATURES.index("log_length")]
    assert found.shift_of(far) == pytest.approx(found.shift_of(edge))


@pytest.mark.parametrize("count", [30, 300, 3000])
def test_c_never_says_more_than_the_number_of_answers_supports(count):
    rng = np.random.default_rng(4)
    phi = np.array([features(-rng.exponential(0.5, n), -0.2) for n in rng.integers(2, 9, count)])
    found = fit_evidence(phi, phi[:, 0] > np.median(phi[:, 0]))  # separable
    values = [confidence([(r,)], [], -0.2, found) for r in (-1e6, 1e6)]
    assert values == pytest.approx([1 / (count + 2), (count + 1) / (count + 2)])


@pytest.mark.parametrize(
    "change",
    [
        {"weights": [1.0]},
        {"weights": 3},
        {"low": [0.0, 1.0]},
        {"center": ["a"] * 8},
        {"bias": None},
        {"slope": [1.0]},
        {"adjusted": [1.0]},
        {"limit": float("nan")},
        {"floor": 0.1},  # fitted by an earlier version
        {"features": 7},
        {"trace": [1]},
        {"trace": {"features": list(TRACE_FEATURES)}},
    ],
)
def test_damaged_evidence_is_refused_when_it_is_read(change):
    with pytest.raises(ModelError, match=r"^grace\.json has (evidence|trace).* or fit it again$"):
        Evidence.from_dict({**EVIDENCE.to_dict(), **change})
    left = {key: value for key, value in EVIDENCE.to_dict().items() if key not in change}
    if change.keys() & {"weights", "features"}:
        with pytest.raises(ModelError, match="or fit it again"):
            Evidence.from_dict(left)


@pytest.mark.parametrize("slope", [0.1, 0.5, 1.0, 3.0])
def test_a_slope_multiplies_the_log_odds(slope):
    mapped = EVIDENCE.mapped(slope, slope, 0.0)
    for r in (-7.0, -0.3, 2.0):
        odds = slope * (r + EVIDENCE.of([-0.4], -0.2))
        assert confidence([(r,)], [-0.4], -0.2, mapped) == pytest.approx(1 / (1 + math.exp(-odds)))


@pytest.mark.parametrize("evidence", [replace(EVIDENCE, limit=1.5), Evidence.none()])
def test_the_map_that_is_written_is_the_one_that_was_fitted(evidence):
    """Also where c is at its bound, which most of these are, and of a map on top of a map."""
    rng = np.random.default_rng(2)
    answers = [([-rng.exponential(), -rng.exponential()], rng.normal(0, 30)) for _ in range(60)]
    correct_N = rng.random(60) < 0.7
    for _ in range(2):
        c_N = [confidence([(state,)], tokens, -0.2, evidence) for tokens, state in answers]
        parts_PN = parts(evidence, c_N, [[*tokens, -0.2] for tokens, _ in answers])
        fit = LogOdds.fit(parts_PN, correct_N, 0.5)
        evidence = evidence.mapped(*fit.a, fit.b)
        evidence = Evidence.from_dict(json.loads(json.dumps(evidence.to_dict())))
        written = [confidence([(state,)], tokens, -0.2, evidence) for tokens, state in answers]
        assert written == pytest.approx(fit.transform(parts_PN), abs=1e-9)


def test_evidence_that_was_mapped_by_an_earlier_version_is_read_as_before():
    old = {**EVIDENCE.to_dict(), "slope": 0.3, "bias": 0.7}
    c = confidence([(2.0,)], [-0.4], -0.2, Evidence.from_dict(old))
    assert c == confidence([(2.0,)], [-0.4], -0.2, replace(EVIDENCE, slope=0.3, bias=0.7))
    assert "adjusted" not in EVIDENCE.to_dict()


def test_a_response_unlike_those_of_training_is_told():
    rng = np.random.default_rng(5)
    rows = [(-rng.exponential(0.5, n)).tolist() for n in rng.integers(2, 9, 400)]
    phi = np.array([features(row, -0.2) for row in rows])
    found = fit_evidence(phi, rng.random(400) < 1 / (1 + np.exp(-2 - 2 * phi[:, 0])))
    assert not any(found.outside(row) for row in rows)
    assert found.outside([-19.0, -15.0, -18.0]) and found.outside([-0.1] * 200)
    assert not EVIDENCE.outside([-19.0, -15.0])  # of a model that recorded no range
