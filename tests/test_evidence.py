import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from grace.errors import ModelError
from grace.evidence import (
    FEATURES,
    LOWEST,
    Evidence,
    confidence,
    features,
    fit,
    shift,
    shifted,
)

EVIDENCE = Evidence((2.0, 0.5, 0.1, -0.4, 1.5, 0.8), (-0.3, -0.9, -2.0, 0.7, 0.4, 0.6), 0.7)


@pytest.mark.parametrize("offset", [-6.0, -0.5, 0.0, 0.5, 6.0])
def test_shift_equals_adding_to_the_logit_before_the_softmax(offset):
    logits = (
        torch.randn(200, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 5
    )
    moved = logits.clone()
    moved[:, 3] += offset
    found = shift(logits.log_softmax(-1)[:, 3], torch.tensor(offset))
    torch.testing.assert_close(found, moved.log_softmax(-1)[:, 3], atol=1e-6, rtol=1e-5)


def test_shift_is_finite_and_differentiable_at_the_extremes():
    log_c = torch.tensor([-1e-12, -1e-3, -30.0, -80.0], requires_grad=True)
    out = shift(log_c, torch.tensor([3.0, -3.0, 5.0, -5.0]))
    out.sum().backward()
    assert torch.isfinite(out).all() and torch.isfinite(log_c.grad).all()
    assert (out <= 0).all()


def test_running_batch_and_single_features_agree():
    lengths = [1, 4, 7, 0]
    logprobs = -torch.rand(4, 7, generator=torch.Generator().manual_seed(1)) * 3
    kept = torch.arange(7) < torch.tensor(lengths)[:, None]
    running = EVIDENCE.running(logprobs)
    batch = EVIDENCE.of_batch(logprobs, kept)
    for row, length in enumerate(lengths):
        along = EVIDENCE.along(logprobs[row].tolist())
        assert along == pytest.approx(running[row].tolist(), abs=1e-5)
        single = EVIDENCE.of(logprobs[row, :length].tolist())
        assert float(running[row, length]) == pytest.approx(single, abs=1e-5)
        assert float(batch[row]) == pytest.approx(single, abs=1e-5)


def test_right_aligned_and_left_aligned_responses_have_the_same_evidence():
    logprobs = -torch.rand(1, 3, generator=torch.Generator().manual_seed(2))
    padded = torch.cat([torch.full((1, 4), -9.0), logprobs], 1)
    kept = torch.tensor([[False] * 4 + [True] * 3])
    expected = EVIDENCE.of(logprobs[0].tolist())
    assert float(EVIDENCE.of_batch(padded, kept)) == pytest.approx(expected, abs=1e-5)


def test_features_are_what_their_names_say():
    values = dict(zip(FEATURES, features([-0.5, -2.0, -0.1]), strict=True))
    assert values == pytest.approx(
        {
            "mean_logprob": -2.6 / 3,
            "min_logprob": -2.0,
            "sum_logprob": -2.6,
            "log_length": np.log(3),
            "min_prob": np.exp(-2.0),
            "first_prob": np.exp(-0.5),
        }
    )


def test_an_impossible_token_and_an_empty_response_stay_finite():
    assert features([float("-inf"), 0.0])[:2] == (-10.0, -20.0)
    assert features([]) == (0.0, 0.0, 0.0, 0.0, 1.0, 1.0)


def test_an_impossible_token_counts_the_same_however_the_evidence_is_computed():
    logprobs = [-0.5, float("-inf"), -400.0, -0.1]
    expected = EVIDENCE.of([-0.5, LOWEST, LOWEST, -0.1])
    tensor = torch.tensor([logprobs])
    batch = EVIDENCE.of_batch(tensor, torch.ones(1, 4, dtype=torch.bool))
    found = (EVIDENCE.of(logprobs), EVIDENCE.along(logprobs)[-1], EVIDENCE.running(tensor)[0, -1])
    assert [float(value) for value in (*found, batch[0])] == pytest.approx([expected] * 4, abs=1e-4)


def test_fit_finds_what_logistic_regression_finds():
    rng = np.random.default_rng(0)
    x = np.array([features(-rng.exponential(0.7, n)) for n in rng.integers(1, 8, 4000)])
    y = rng.random(4000) < 1 / (1 + np.exp(-(1.0 + 2.0 * x[:, 0] + 0.4 * x[:, 1])))
    oracle = LogisticRegression(C=np.inf, max_iter=5000).fit(x, y)
    found = fit(x, y)
    ours = found.bias + (x - np.array(found.center)) @ np.array(found.weights)
    assert np.corrcoef(ours, oracle.decision_function(x))[0, 1] > 0.995
    np.testing.assert_allclose(found.center, x.mean(0))


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_fitted_evidence_says_how_often_answers_are_right(share):
    rng = np.random.default_rng(1)
    logprobs = [-rng.exponential(0.7, n) for n in rng.integers(1, 8, 2000)]
    found = fit(np.array([features(row) for row in logprobs]), rng.random(2000) < share)
    half = np.log(0.5)  # <CNF> as likely as EOS, and nothing else
    assert np.mean([confidence(half, row, found) for row in logprobs]) == pytest.approx(
        share, abs=0.03
    )


def test_evidence_of_a_model_made_before_the_bias_has_none():
    data = EVIDENCE.to_dict()
    del data["bias"]
    assert Evidence.from_dict(data).bias == 0.0


def test_evidence_survives_grace_json_and_refuses_other_features():
    assert Evidence.from_dict(EVIDENCE.to_dict()) == EVIDENCE
    with pytest.raises(ModelError, match="this version knows"):
        Evidence.from_dict({"features": ["entropy"], "weights": [1.0], "center": [0.0]})


@pytest.mark.parametrize("slope", [0.1, 0.5, 1.0, 3.0])
def test_a_slope_multiplies_the_log_odds_with_and_without_torch(slope):
    log_c = torch.tensor([-0.01, -0.7, -4.0, -12.0], dtype=torch.float64)
    offset = torch.tensor([0.3, -2.0, 1.0, 5.0], dtype=torch.float64)
    odds = log_c - torch.log(-torch.expm1(log_c)) + offset
    found = shift(log_c, offset, slope)
    torch.testing.assert_close(found, torch.nn.functional.logsigmoid(slope * odds))
    plain = [shifted(float(a), float(b), slope) for a, b in zip(log_c, offset, strict=True)]
    assert plain == pytest.approx(found.exp().tolist(), rel=1e-6)


def test_a_map_after_a_map_is_one_map_after_the_other():
    def log_odds(evidence):
        c = confidence(-0.6, [-0.3, -1.2], evidence)
        return np.log(c / (1 - c))

    once = EVIDENCE.mapped(0.4, -0.8)
    assert log_odds(once) == pytest.approx(0.4 * log_odds(EVIDENCE) - 0.8)
    assert log_odds(once.mapped(2.5, 0.3)) == pytest.approx(2.5 * log_odds(once) + 0.3)


def test_a_slope_is_finite_and_differentiable_at_the_extremes():
    log_c = torch.tensor([-1e-12, -1e-3, -30.0, -80.0], requires_grad=True)
    out = shift(log_c, torch.tensor([3.0, -3.0, 5.0, -5.0]), 0.5)
    out.sum().backward()
    assert torch.isfinite(out).all() and torch.isfinite(log_c.grad).all()
