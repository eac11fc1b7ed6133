"""c on held-out responses during training, and how well calibrated it is.

Shapes: N examples.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from grace import metrics
from grace.cnf import Readout
from grace.evidence import Evidence
from grace.training.examples import Example, collate
from grace.training.forward import ReadAt, losses


def log_confidences(
    model: Any,
    examples: Sequence[Example],
    readout: Readout,
    pad_id: int,
    *,
    read_at: ReadAt = "predict",
    evidence: Evidence | None = None,
    end_ids: Sequence[int] = (),
    batch_size: int = 8,
) -> NDArray[np.float64]:
    """Return log c of every example, shape (N,); the model is left in evaluation mode."""
    model.eval()
    if read_at == "prompt":  # what comes after it does not matter
        examples = [dataclasses.replace(example, response_ids=()) for example in examples]
    device = next(model.parameters()).device
    order = sorted(range(len(examples)), key=lambda row: len(examples[row]))
    log_c_N = np.empty(len(examples), dtype=np.float64)
    with torch.no_grad():
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            batch: Any = collate([examples[row] for row in rows], readout, pad_id)
            moved: Any = {name: value.to(device) for name, value in batch.items()}
            terms = losses(
                model,
                moved,
                readout,
                read_at=read_at,
                with_sft=False,
                evidence=evidence,
                end_ids=end_ids,
            )
            log_c_N[rows] = terms.log_c.double().cpu().numpy()
    return log_c_N


def calibration_of(log_c_N: NDArray[np.float64], examples: Sequence[Example]) -> dict[str, float]:
    """Return ECE, Brier score, AUROC (unless undefined), mean c and mean log c.

    The `target` of an example is its correctness, 0 or 1.
    """
    c_N = np.exp(log_c_N)
    correct_N = np.array([example.target > 0.5 for example in examples])
    values = {
        "eval_ece": metrics.ece(c_N, correct_N),
        "eval_brier": metrics.brier(c_N, correct_N),
        "eval_auroc": metrics.auroc(c_N, correct_N),
        "eval_mean_c": float(c_N.mean()),
        "eval_mean_log_c": float(log_c_N.mean()),
    }
    return {name: value for name, value in values.items() if math.isfinite(value)}
