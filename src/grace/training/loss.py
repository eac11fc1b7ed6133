"""The two terms of the loss, always in float32.

Shapes: B examples, K kept positions, V vocabulary.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from grace.cnf import log1mexp
from grace.training.examples import IGNORED

LossKind = Literal["mse", "log"]


def calibration_loss(log_c_B: Tensor, target_B: Tensor, kind: LossKind = "mse") -> Tensor:
    """Return the calibration loss of every example, shape (B,), from log c and the target t.

    `mse` is (t - c)^2; `log` is -t log c - (1 - t) log(1 - c).
    Source: arXiv 2509.09438 section 3.2.3.
    """
    log_c_B, target_B = log_c_B.float(), target_B.float()
    if kind == "mse":
        return (target_B - log_c_B.exp()).square()
    return -target_B * log_c_B - (1 - target_B) * log1mexp(log_c_B)


def token_losses(logits_BKV: Tensor, labels_BK: Tensor) -> Tensor:
    """Return -log p of every label, shape (B, K) in float32, 0 where the label is -100.

    `logits_BKV[:, j]` predicts `labels_BK[:, j]`. Only labelled positions are worked on, and all
    of them together, so a label more costs one row of logits.
    """
    kept_BK = labels_BK != IGNORED
    loss_BK = torch.zeros(labels_BK.shape, device=logits_BKV.device)
    loss_BK[kept_BK] = F.cross_entropy(
        logits_BKV[kept_BK].float(), labels_BK[kept_BK], reduction="none"
    )
    return loss_BK


def mean_over_tokens(loss_BK: Tensor, labels_BK: Tensor) -> Tensor:
    """Return the mean over every example's own labels, shape (B,); 0 for one without labels."""
    return loss_BK.sum(dim=1) / (labels_BK != IGNORED).sum(dim=1).clamp(min=1)
