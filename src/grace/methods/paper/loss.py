"""One forward pass of training: c and the two terms of the loss, in float32.

Also c of validation responses, and how well calibrated it is.

Shapes: N examples, B sequences, T tokens, K kept positions, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from grace.cnf import Readout, without
from grace.config.settings import ReadAt
from grace.engines.local.forward import Forward, read, shared
from grace.methods.paper.examples import IGNORED, Example, TrainingBatch, collate, to_device
from grace.metrics import evaluate


class Losses(NamedTuple):
    """Per example, shape (B,): the calibration term, the SFT term, and log c."""

    calibration: Tensor
    sft: Tensor
    log_c: Tensor


def losses(
    model: Any,
    batch: TrainingBatch,
    readout: Readout,
    *,
    read_at: ReadAt = "predict",
    with_sft: bool = True,
    cnf_in_sft: bool = False,
) -> Losses:
    """Run the model on a batch and return the terms of the loss (paper eq. 7).

    c is read at the last response token (`read_at="predict"`; the model need not see `<CNF>`), at
    `<CNF>` itself (`feed`), or at the last prompt token (`prompt`). Logits are computed from the
    last prompt token on only. log c is the float32 log-softmax over the full vocabulary.
    With `cnf_in_sft`, `<CNF>` is one more label of the SFT term where c
    is read. At `prompt` the SFT term is that of a model without `<CNF>`, as responses are sampled.

    Of ten bin tokens there is no calibration term (it is zero); that of the target's interval is
    one more label of the SFT term.
    """
    length = batch["input_ids"].shape[1] - (read_at != "feed")
    next_BT = batch["labels"][:, 1:length]
    kept = 1  # the last position alone, unless response tokens matter
    if with_sft or read_at == "prompt":
        kept = min(int((next_BT != IGNORED).sum(dim=1).max()) + (read_at == "feed") + 1, length)
    logits_BKV = forward_logits(model, batch, length, kept)
    next_BK = next_BT[:, length - kept :]
    if read_at == "prompt":
        logits_BKV = _prompt_last(logits_BKV, next_BK, readout)
    labels_BK = torch.cat([next_BK, batch["input_ids"][:, -1:]], dim=1)
    loss_BK = token_losses(logits_BKV, labels_BK)
    if readout.head == "bins":
        read_BE = logits_BKV[:, -1, list(readout.ids)].detach().float()
        log_c_B = readout.readings(read_BE, read_BE.logsumexp(-1))[:, 0].sigmoid().log()
        return Losses(torch.zeros_like(log_c_B), mean_over_tokens(loss_BK, labels_BK), log_c_B)
    log_c_B = -loss_BK[:, -1]
    if not cnf_in_sft:
        loss_BK, labels_BK = loss_BK[:, :-1], next_BK
    sft_B = mean_over_tokens(loss_BK, labels_BK)
    return Losses(calibration_loss(log_c_B, batch["target"]), sft_B, log_c_B)


def _prompt_last(logits_BKV: Tensor, next_BK: Tensor, readout: Readout) -> Tensor:
    """Return logits without `<CNF>`, and at the last position those of the last prompt token."""
    start_B = next_BK.shape[1] - (next_BK != IGNORED).sum(dim=1)
    rows_B = torch.arange(len(start_B), device=start_B.device)
    read_BV = logits_BKV[rows_B, start_B]
    return torch.cat([without(logits_BKV[:, :-1], readout), read_BV[:, None]], dim=1)


def forward_logits(model: Any, batch: TrainingBatch, length: int, kept: int) -> Tensor:
    """Return logits (B, K, V) of the last `kept` of `length` positions; a prefix is read once."""
    ids_BT = batch["input_ids"][:, :length]
    mask_BT = batch["attention_mask"][:, :length]
    if _may_share(model):
        forward, positions_BT = Forward(model), batch["position_ids"][:, :length]
        rows = zip(ids_BT.tolist(), mask_BT.sum(1).tolist(), strict=True)
        common = shared([ids[length - count :] for ids, count in rows])
        rest = read(forward, ids_BT, mask_BT, positions_BT, common, kept)
        if rest.cache is not None:
            return forward(rest, keep=kept)[0]
    inputs: dict[str, Any] = {
        "input_ids": ids_BT,
        "attention_mask": mask_BT,
        "use_cache": False,
    }
    accepted = _forward_arguments(model)
    if "position_ids" in accepted:
        inputs["position_ids"] = batch["position_ids"][:, :length]
    if "logits_to_keep" in accepted:
        inputs["logits_to_keep"] = kept
    logits_BKV: Tensor = model(**inputs).logits
    return logits_BKV[:, -kept:]


def _may_share(model: Any) -> bool:
    modules = [] if hasattr(model, "module") else list(model.modules())
    return bool(modules) and not any(getattr(m, "gradient_checkpointing", 0) for m in modules)


def _forward_arguments(model: Any) -> set[str]:
    while hasattr(model, "module"):
        model = model.module
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    return set(inspect.signature(base.forward).parameters)


def calibration_loss(log_c_B: Tensor, target_B: Tensor) -> Tensor:
    """Return (t - c)^2 of every example, (B,), from log c and the target t (section 3.2.3)."""
    return (target_B.float() - log_c_B.float().exp()).square()


def token_losses(logits_BKV: Tensor, labels_BK: Tensor) -> Tensor:
    """Return -log p (B, K) of the labels, 0 where one is -100; logits j predict label j."""
    kept_BK = labels_BK != IGNORED
    loss_BK = torch.zeros(labels_BK.shape, device=logits_BKV.device)
    loss_BK[kept_BK] = F.cross_entropy(
        logits_BKV[kept_BK].float(), labels_BK[kept_BK], reduction="none"
    )
    return loss_BK


def mean_over_tokens(loss_BK: Tensor, labels_BK: Tensor) -> Tensor:
    """Return the mean over every example's own labels, shape (B,); 0 for one without labels."""
    return loss_BK.sum(dim=1) / (labels_BK != IGNORED).sum(dim=1).clamp(min=1)


def log_confidences(
    model: Any,
    examples: Sequence[Example],
    readout: Readout,
    pad_id: int,
    *,
    read_at: ReadAt = "predict",
    batch_size: int = 8,
) -> NDArray[np.float64]:
    """Return log c of every example, shape (N,); the model is left in evaluation mode."""
    model.eval()
    if read_at == "prompt":  # the response does not matter
        examples = [dataclasses.replace(example, response_ids=()) for example in examples]
    device = next(model.parameters()).device
    order = sorted(range(len(examples)), key=lambda row: len(examples[row]))
    log_c_N = np.empty(len(examples), dtype=np.float64)
    with torch.no_grad():
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            batch = collate([examples[row] for row in rows], readout, pad_id)
            terms = losses(
                model, to_device(batch, device), readout, read_at=read_at, with_sft=False
            )
            log_c_N[rows] = terms.log_c.double().cpu().numpy()
    return log_c_N


def calibration_of(log_c_N: NDArray[np.float64], examples: Sequence[Example]) -> dict[str, float]:
    """Return ECE, Brier score, AUROC (unless undefined), mean c and mean log c."""
    c_N = np.exp(log_c_N)
    correct_N = np.array([example.target > 0.5 for example in examples])
    values = evaluate(c_N, correct_N, ("ece", "brier", "auroc"))
    values |= {"mean_c": float(c_N.mean()), "mean_log_c": float(log_c_N.mean())}
    return {f"eval_{name}": value for name, value in values.items() if math.isfinite(value)}
