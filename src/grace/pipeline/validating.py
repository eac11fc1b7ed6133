"""What validation answers say of GrACE beside simpler methods, before any test.

All rate the same answers, the backbone's. Platt scaling is fitted on these answers and GrACE's
LoRA is chosen on them, the others have not seen them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from grace.errors import RunError
from grace.pipeline.context import Context
from grace.pipeline.scoring import COMPARED
from grace.report import Validation

Array = NDArray[np.float64]
CLIP = 1e-6  # confidences are kept this far from 0 and 1 before a logarithm is taken
OURS, *RIVALS = COMPARED


def validated(context: Context) -> Iterator[Validation]:
    """Yield GrACE beside each rival in log loss and in Brier score.

    A run that was rated by an earlier version has none.
    """
    split, settings = context.directory.split("validation"), context.settings
    try:
        tables = {name: split.confidences(name).read() for name in COMPARED}
    except RunError:
        return
    right_N = np.array([grade.correct for grade in split.grades.read()], dtype=float)
    c = {k: np.array([row.confidence for row in t], dtype=float) for k, t in tables.items()}
    questions = np.array([row.id.rpartition("#")[0] for row in tables[OURS]])
    for rival in RIVALS:
        both_N = np.isfinite(c[OURS]) & np.isfinite(c[rival])
        for metric, lossy in (("log_loss", _log_loss), ("brier", _brier)):
            ours_N, theirs_N = (lossy(c[k], right_N)[both_N] for k in (OURS, rival))
            if len(set(questions[both_N])) < 2:
                continue
            yield Validation(
                task=settings.data.task,
                backbone=Path(settings.model.path).name,
                seed=settings.seed,
                a=settings.report.name,
                b=rival,
                metric=metric,
                n=int(both_N.sum()),
                a_value=float(ours_N.mean()),
                b_value=float(theirs_N.mean()),
                standard_error=_standard_error(ours_N - theirs_N, questions[both_N]),
            )


def _log_loss(c_N: Array, right_N: Array) -> Array:
    kept_N = np.clip(c_N, CLIP, 1 - CLIP)
    loss_N: Array = -right_N * np.log(kept_N) - (1 - right_N) * np.log1p(-kept_N)
    return loss_N


def _brier(c_N: Array, right_N: Array) -> Array:
    return (c_N - right_N) ** 2


def _standard_error(difference_N: Array, questions_N: NDArray[np.str_]) -> float:
    """Return that of the mean difference, the answers to one question taken together."""
    _, question_N = np.unique(questions_N, return_inverse=True)
    away_Q = np.bincount(question_N, weights=difference_N - difference_N.mean())
    count = len(away_Q)
    return math.sqrt(count / (count - 1) * float(away_Q @ away_Q)) / len(difference_N)
