"""Evidence: the probabilities that the model gave its own tokens, added to the logit of `<CNF>`.

The hidden state where c is read cannot contain how probable the response's tokens were: each of
those probabilities comes out of the last layer, which no later position can see. So the running
log-probabilities, known while generating, shift the logit of `<CNF>` before the softmax:

    c = softmax(E z + (bias + w . (phi - center)) * onehot(<CNF>))[<CNF>]

with phi the `FEATURES` of the response tokens' log-probabilities. It costs no forward pass, and c
with evidence follows from c without by `shift`, so any engine that returns log-probabilities can
compute it (`confidence`). Without evidence (the paper's c) the shift is zero.

A model that was recalibrated for other questions (`grace recalibrate`) has a `slope` too: its
log-odds of c, after the shift, are multiplied by it.

Shapes: N responses, F features, B rows, T steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from grace.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor

FEATURES = ("mean_logprob", "min_logprob", "sum_logprob", "log_length", "min_prob", "first_prob")
LOWEST = -20.0  # log-probabilities below this count as this
RIDGE = 1e-3  # penalty on the weights of standardised features, per response


@dataclass(frozen=True, slots=True)
class Evidence:
    """Weights of `FEATURES`, their means in training, and the shift at those means.

    `slope`, which is positive, multiplies the shifted log-odds of c.
    """

    weights: tuple[float, ...]
    center: tuple[float, ...]
    bias: float = 0.0
    slope: float = 1.0

    def to_dict(self) -> dict[str, Any]:
        """Return what grace.json holds."""
        return {"features": list(FEATURES), **asdict(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Evidence:
        """Read what `to_dict` wrote.

        Raises:
            ModelError: the features are not those of this version.
        """
        if tuple(data.get("features", ())) != FEATURES:
            raise ModelError(
                f"grace.json has evidence on {data.get('features')}, this version knows "
                f"{list(FEATURES)}; install the version that trained the model"
            )
        return cls(
            tuple(data["weights"]),
            tuple(data["center"]),
            data.get("bias", 0.0),
            data.get("slope", 1.0),
        )

    @classmethod
    def none(cls) -> Evidence:
        """Return evidence that changes nothing."""
        zeros = (0.0,) * len(FEATURES)
        return cls(zeros, zeros)

    def mapped(self, slope: float, offset: float) -> Evidence:
        """Return the evidence that makes the log-odds of c `slope` times those now + `offset`."""
        together = self.slope * slope
        return replace(self, bias=self.bias + offset / together, slope=together)

    def of(self, logprobs: Sequence[float]) -> float:
        """Return the shift for one response."""
        return self._shift(features(logprobs))

    def along(self, logprobs: Sequence[float]) -> list[float]:
        """Return the shift before each of a response's steps and after the last, without torch."""
        growing = Growing(self)
        shifts = [growing.shift]
        for value in logprobs:
            growing.add(value)
            shifts.append(growing.shift)
        return shifts

    def running(self, logprobs_BT: Tensor) -> Tensor:
        """Return the shift before each step, from the tokens of the steps before it, (B, T + 1)."""
        import torch

        kept_BT = logprobs_BT.float().clamp(LOWEST, 0)
        count_T = torch.arange(1, kept_BT.shape[1] + 1, device=kept_BT.device)
        sum_BT = kept_BT.cumsum(1)
        low_BT = kept_BT.cummin(1).values if kept_BT.shape[1] else kept_BT
        length_BT = count_T.log().expand_as(sum_BT)
        first_BT = kept_BT[:, :1].expand_as(sum_BT)
        parts = (sum_BT / count_T, low_BT, sum_BT, length_BT, low_BT.exp(), first_BT.exp())
        empty_BF = kept_BT.new_tensor(features(())).expand(len(kept_BT), 1, -1)
        return self._combine(torch.cat([empty_BF, torch.stack(parts, -1)], 1))

    def of_batch(self, logprobs_BT: Tensor, kept_BT: Tensor) -> Tensor:
        """Return the shift of each row, (B,), from the log-probabilities where `kept_BT` is set."""
        import torch

        if not kept_BT.shape[1]:
            return self._combine(logprobs_BT.new_tensor(features(())).expand(len(kept_BT), -1))
        clipped_BT = logprobs_BT.float().clamp(LOWEST, 0).masked_fill(~kept_BT, 0)
        count_B, sum_B = kept_BT.sum(1).clamp(min=1), clipped_BT.sum(1)
        low_B = clipped_BT.amin(1)
        first_B = clipped_BT.gather(1, kept_BT.int().argmax(1, keepdim=True))[:, 0]
        parts = (sum_B / count_B, low_B, sum_B, count_B.log(), low_B.exp(), first_B.exp())
        return self._combine(torch.stack(parts, -1))

    def _shift(self, found: Sequence[float]) -> float:
        parts = zip(self.weights, found, self.center, strict=True)
        return self.bias + sum(weight * (value - middle) for weight, value, middle in parts)

    def _combine(self, features_F: Tensor) -> Tensor:
        center_F, weights_F = map(features_F.new_tensor, (self.center, self.weights))
        return (features_F - center_F) @ weights_F + self.bias


class Growing:
    """The shift for a response that grows token by token; each token takes the same time.

    `shift` is that of the tokens so far.
    """

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._total, self._low, self._first, self._count = 0.0, 0.0, 0.0, 0
        self.shift = evidence.of(())

    def add(self, logprob: float) -> None:
        """Take the log-probability of the next token."""
        kept = _clipped(logprob)
        if self._count == 0:
            self._first = kept
        self._count += 1
        self._total, self._low = self._total + kept, min(self._low, kept)
        found = _features(self._total, self._low, self._first, self._count)
        self.shift = self._evidence._shift(found)


def confidence(
    cnf_logprob: float, logprobs: Sequence[float], evidence: Evidence | None = None
) -> float:
    """Return c from what any server can return, without torch.

    Args:
        cnf_logprob: natural-log probability of `<CNF>` at the step that ended the response, from
            the softmax at temperature 1.
        logprobs: those of the response's tokens, without its end token.
        evidence: the weights in grace.json; None: the paper's c.
    """
    if evidence is None:
        return math.exp(min(cnf_logprob, 0.0))
    return shifted(cnf_logprob, evidence.of(logprobs), evidence.slope)


def shifted(cnf_logprob: float, offset: float, slope: float = 1.0) -> float:
    """Return c after `offset` was added to its log-odds and `slope` multiplied them, no torch."""
    log_c = min(cnf_logprob, -1e-7)
    logit = slope * (log_c - math.log(-math.expm1(log_c)) + offset)
    return 1 / (1 + math.exp(-logit)) if logit > -700 else 0.0


def shift(log_c: Tensor, offset: Tensor, slope: float = 1.0) -> Tensor:
    """Return log c after `offset` was added to its log-odds and `slope` multiplied them.

    Both tensors have the same shape. Adding to the log-odds of c adds to the logit of `<CNF>`.
    """
    import torch

    log_c = log_c.clamp(max=-1e-7)
    log_c = log_c + offset - torch.logaddexp(log1mexp(log_c), log_c + offset)
    if slope == 1:
        return log_c
    return torch.nn.functional.logsigmoid(slope * (log_c - log1mexp(log_c)))


def log1mexp(log_c: Tensor) -> Tensor:
    """Return log(1 - exp(x)) for x <= 0, accurate at both ends; x is kept below -1e-7."""
    import torch

    log_c = log_c.clamp(max=-1e-7)
    near_zero = log_c > -math.log(2)
    far = torch.where(near_zero, torch.full_like(log_c, -1.0), log_c)
    close = torch.where(near_zero, log_c, torch.full_like(log_c, -0.5))
    return torch.where(near_zero, torch.log(-torch.expm1(close)), torch.log1p(-torch.exp(far)))


def features(logprobs: Sequence[float]) -> tuple[float, ...]:
    """Return the `FEATURES` of a response; an empty one counts as certain (log p = 0)."""
    kept = [_clipped(value) for value in logprobs] or [0.0]
    return _features(math.fsum(kept), min(kept), kept[0], len(kept))


def _clipped(logprob: float) -> float:
    return min(max(LOWEST, logprob), 0.0)  # nan: the lowest


def _features(total: float, low: float, first: float, count: int) -> tuple[float, ...]:
    return (total / count, low, total, math.log(count), math.exp(low), math.exp(first))


def fit(features_NF: NDArray[Any], labels_N: NDArray[Any]) -> Evidence:
    """Fit weights and bias by logistic regression of correctness on the features.

    Where `<CNF>` starts as likely as the end of the response, and the end is sure, c starts at
    this regression's P(correct), whatever the share of right answers.
    """
    from scipy.optimize import minimize

    center_F = features_NF.mean(0)
    scale_F = np.maximum(features_NF.std(0), 1e-6)
    x_NF, y_N = (features_NF - center_F) / scale_F, labels_N.astype(float)

    def loss(beta: NDArray[Any]) -> tuple[float, NDArray[Any]]:
        logit_N = beta[0] + x_NF @ beta[1:]
        residual_N = 1 / (1 + np.exp(-logit_N)) - y_N
        value = float(np.mean(np.logaddexp(0, logit_N) - y_N * logit_N))
        gradient = np.concatenate([[residual_N.mean()], residual_N @ x_NF / len(y_N)])
        penalty = np.concatenate([[0.0], RIDGE * beta[1:]])
        return value + float(penalty @ beta) / 2, gradient + penalty

    beta = minimize(loss, np.zeros(1 + len(FEATURES)), jac=True, method="L-BFGS-B").x
    weights = tuple((beta[1:] / scale_F).tolist())
    return Evidence(weights, tuple(center_F.tolist()), float(beta[0]))
