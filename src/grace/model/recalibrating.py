"""Recalibration: three numbers adjust a fitted confidence to other questions.

On questions unlike those of training, c may be too high or too low, and the hidden states may
predict less well than the log-probabilities, or not at all. So each of these two parts of c's
log-odds gets a slope and their sum an offset, fitted to graded answers. Every engine applies them
where it computes c (`grace.evidence`). The answers do not change.
"""

from __future__ import annotations

import shutil
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grace.calibration import SLOPE_SPREAD, LogOdds, log_odds
from grace.errors import ModelError, UserInputError
from grace.evidence import Evidence
from grace.methods.card import model_card
from grace.model.loading import adapter_folder
from grace.store import CARD, check_vacant, disk_watched, read_card, replace_directory, write_json

Array = NDArray[np.float64]

FOLDS = 5
PART_SPREADS = (1.0, 0.3)  # the rows may be useless on other questions (decision 005)
MIN_QUESTIONS = 10


class Recalibrated(NamedTuple):
    """The slopes of the two parts of c (equal without log-probabilities), and the offset."""

    rows: float
    evidence: float
    offset: float
    unseen: list[float]  # c of each answer, by a fit without it


def parts(
    evidence: Evidence | None,
    confidence: Sequence[float],
    logprobs: Sequence[Sequence[float] | None],
) -> Array:
    """Split the log-odds of c into the parts of the rows and of the evidence."""
    total_N = log_odds(confidence)
    complete = [one for one in logprobs if one]
    if evidence is None or len(complete) < len(logprobs):
        return total_N[None]
    shift_N = np.array([evidence.added(evidence.of(one[:-1], one[-1])) for one in complete])
    return np.stack([total_N - shift_N, shift_N])


def fit_recalibration(
    parts_PN: Array, correct: Sequence[bool], questions: Sequence[Hashable]
) -> Recalibrated:
    """Fit on all `parts_PN`, and on folds of questions for `unseen`; sources count the same."""
    from grace.probe.rows import assign_folds, weights_of

    if len(set(questions)) < MIN_QUESTIONS:
        raise UserInputError(
            f"there are graded answers to {len(set(questions))} questions; grade answers to at "
            f"least {MIN_QUESTIONS}, better 100"
        )
    spread = SLOPE_SPREAD if len(parts_PN) == 1 else PART_SPREADS
    correct_N, weight_N = np.asarray(correct), weights_of(questions)
    fold_N, unseen_N = assign_folds(questions, FOLDS, seed=0), np.empty(len(correct_N))
    for fold in range(FOLDS):
        held = fold_N == fold
        fit = LogOdds.fit(parts_PN[:, ~held], correct_N[~held], spread, weight_N[~held])
        unseen_N[held] = fit.transform(parts_PN[:, held])
    fit = LogOdds.fit(parts_PN, correct_N, spread, weight_N)
    return Recalibrated(fit.a[0], fit.a[-1], fit.b, unseen_N.tolist())


def recalibratable(path: Path) -> Path:
    """Return the adapter directory of a run or adapter that can be recalibrated."""
    folder = adapter_folder(path, None)
    if folder is None:
        raise ModelError(
            f"{path} is neither a run nor an adapter; give one of them (instead of an export the "
            "run that it was made from, and then export the result)"
        )
    card = read_card(folder)
    if "rows" not in card:
        raise ModelError(f"{folder} has no grace.json written by GrACE; name a finished run")
    bins = card.get("cnf_id") is None
    if bins or card.get("read_at") == "prompt":
        raise ModelError(
            f"the confidence of {path} is read {'from bins' if bins else 'at the prompt'}, which "
            "cannot be recalibrated; train one that is read where the response ends"
        )
    return folder


def write_recalibrated(
    folder: Path, out: Path, made: Recalibrated, of_fields: Recalibrated | None = None
) -> None:
    """Copy an adapter with the fitted numbers, without what was measured of the old ones."""
    check_vacant(out)
    card: dict[str, Any] = read_card(folder)
    card.pop("measured", None)
    *fitted, unseen = made
    about = dict(zip(("rows", "evidence", "offset"), fitted, strict=True))
    evidence = (Evidence.in_card(card) or Evidence.none()).mapped(*fitted)
    if of_fields is not None:
        evidence = evidence.mapped_fields(*of_fields[:3])
    card |= {
        "evidence": evidence.to_dict(),
        "recalibrated": [*card.get("recalibrated", []), {**about, "answers": len(unseen)}],
    }

    def fill(partial: Path) -> None:
        old = shutil.ignore_patterns("threshold.json", "vote.json", "reliability.png")
        shutil.copytree(folder, partial, ignore=old, dirs_exist_ok=True)
        write_json(partial / CARD, card)
        (partial / "README.md").write_text(model_card(card), encoding="utf-8")

    with disk_watched(out):
        replace_directory(out, fill)
