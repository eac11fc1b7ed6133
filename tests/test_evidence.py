import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from grace.errors import ModelError
from grace.evidence import Evidence, features, fit, shift

EVIDENCE = Evidence((2.0, 0.5), (-0.3, -0.9))


@pytest.mark.parametrize("offset", [-6.0, -0.5, 0.0, 0.5, 6.0])
def test_shift_equals_adding_to_the_logit_before_the_softmax(offset):
    logits = torch.randn(200, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 5
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
        mean, low = features(logprobs[row, :length].tolist())
        single = 2.0 * (mean + 0.3) + 0.5 * (low + 0.9)
        assert float(running[row, length]) == pytest.approx(single, abs=1e-5)
        assert float(batch[row]) == pytest.approx(single, abs=1e-5)


def test_an_impossible_token_stays_finite():
    assert features([float("-inf"), 0.0]) == (-10.0, -20.0)


def test_fit_finds_the_weights_of_logistic_regression():
    rng = np.random.default_rng(0)
    x = np.column_stack([-rng.exponential(0.5, 4000), -rng.exponential(2.0, 4000)])
    y = rng.random(4000) < 1 / (1 + np.exp(-(1.0 + 2.0 * x[:, 0] + 0.4 * x[:, 1])))
    oracle = LogisticRegression(C=np.inf).fit(x, y).coef_[0]
    np.testing.assert_allclose(fit(x, y).weights, oracle, rtol=0.05)
    np.testing.assert_allclose(fit(x, y).center, x.mean(0))


def test_evidence_survives_grace_json_and_refuses_other_features():
    assert Evidence.from_dict(EVIDENCE.to_dict()) == EVIDENCE
    with pytest.raises(ModelError, match="this version knows"):
        Evidence.from_dict({"features": ["entropy"], "weights": [1.0], "center": [0.0]})
