"""One forward pass of training: c where it is read, and the two terms of the loss.

Shapes: B sequences, T tokens, K kept positions, V vocabulary.
"""

from __future__ import annotations

import inspect
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from grace.cnf import log_confidence
from grace.training.examples import IGNORED, Batch
from grace.training.loss import LossKind, calibration_loss, sft_loss

ReadAt = Literal["predict", "feed"]


class Losses(NamedTuple):
    """Per example, shape (B,): the calibration term, the SFT term, and log c."""

    calibration: Tensor
    sft: Tensor
    log_c: Tensor


def losses(
    model: Any,
    batch: Batch,
    cnf_id: int,
    *,
    read_at: ReadAt = "predict",
    loss: LossKind = "mse",
    with_sft: bool = True,
) -> Losses:
    """Run the model on a batch and return the terms of the loss.

    At `predict` c is read at the last response token, so the model need not see `<CNF>`; at
    `feed` it is read at `<CNF>` itself. Logits are computed from the last prompt token on only.
    """
    feed = read_at == "feed"
    labels_BT = batch["labels"] if feed else batch["labels"][:, :-1]
    length = labels_BT.shape[1]
    kept = 1
    if with_sft:
        kept += int((labels_BT != IGNORED).sum(dim=1).max()) + feed
    logits_BKV = forward_logits(model, batch, length, min(kept, length))
    log_c_B = log_confidence(logits_BKV[:, -1], cnf_id)
    if with_sft:
        kept = logits_BKV.shape[1]
        sft_B = sft_loss(logits_BKV[:, :-1], labels_BT[:, length - kept + 1 :])
    else:
        sft_B = torch.zeros_like(log_c_B)
    return Losses(calibration_loss(log_c_B, batch["target"], loss), sft_B, log_c_B)


def forward_logits(model: Any, batch: Batch, length: int, kept: int) -> Tensor:
    """Return the logits of the last `kept` of the first `length` positions, shape (B, K, V)."""
    inputs: dict[str, Any] = {
        "input_ids": batch["input_ids"][:, :length],
        "attention_mask": batch["attention_mask"][:, :length],
        "use_cache": False,
    }
    accepted = _forward_arguments(model)
    if "position_ids" in accepted:
        inputs["position_ids"] = batch["position_ids"][:, :length]
    if "logits_to_keep" in accepted:
        inputs["logits_to_keep"] = kept
    logits_BKV: Tensor = model(**inputs).logits
    return logits_BKV[:, -kept:]


def _forward_arguments(model: Any) -> set[str]:
    while hasattr(model, "module"):
        model = model.module
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    return set(inspect.signature(base.forward).parameters)
