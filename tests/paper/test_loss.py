from __future__ import annotations

import math

import pytest
import torch

from grace.cnf import log1mexp
from grace.methods.paper.loss import calibration_loss, mean_over_tokens, token_losses


def test_the_squared_error_is_that_of_c() -> None:
    log_c, target = torch.tensor([0.25, 0.8]).log(), torch.tensor([0.5, 0.7])
    torch.testing.assert_close(calibration_loss(log_c, target), torch.tensor([0.0625, 0.01]))


@pytest.mark.parametrize("log_c", [0.0, -1e-8, -0.69, -0.7, -30.0, -87.0, -200.0])
@pytest.mark.parametrize("target", [0.0, 0.5, 1.0])
def test_loss_and_gradient_are_finite_from_certainty_to_nothing(
    log_c: float, target: float
) -> None:
    value = torch.tensor([log_c], requires_grad=True)
    loss = calibration_loss(value, torch.tensor([target]))
    loss.sum().backward()
    assert loss.isfinite().all()
    assert value.grad is not None
    assert value.grad.isfinite().all()


def test_log1mexp_keeps_its_accuracy_at_both_ends() -> None:
    x = torch.tensor([-1e-5, -0.3, -0.7, -20.0])
    exact = [math.log(-math.expm1(v)) for v in x.double().tolist()]
    torch.testing.assert_close(log1mexp(x), torch.tensor(exact))


def test_the_sft_term_is_the_mean_over_an_examples_own_tokens() -> None:
    logits = torch.randn(2, 3, 7, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([[-100, 4, 2], [-100, -100, -100]])
    log_p = logits.log_softmax(-1)
    expected = torch.stack([-(log_p[0, 1, 4] + log_p[0, 2, 2]) / 2, torch.tensor(0.0)])
    torch.testing.assert_close(mean_over_tokens(token_losses(logits, labels), labels), expected)


def test_losses_of_half_precision_inputs_are_float32() -> None:
    logits = torch.randn(1, 2, 5).bfloat16()
    assert token_losses(logits, torch.tensor([[1, 2]])).dtype == torch.float32
    log_c = torch.tensor([-0.5]).bfloat16()
    assert calibration_loss(log_c, torch.tensor([0.5])).dtype == torch.float32
