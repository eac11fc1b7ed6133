"""A trained confidence fitted to other questions: two numbers, from graded answers to these.

On other questions than it was trained on c may be too sure, or not sure enough. Its log-odds are
then mapped by a slope and an offset, which every engine applies where it reads c
(`grace.evidence`). The answers and their order by confidence stay as they are.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from grace.calibration import LogOdds
from grace.errors import ModelError, UserInputError
from grace.evidence import Evidence
from grace.model.loading import adapter_folder
from grace.store import (
    CARD,
    check_vacant,
    disk_watched,
    read_card,
    replace_directory,
    write_json,
)
from grace.training.card import model_card

FOLDS = 5
FEWEST = 10  # questions


class Recalibrated(NamedTuple):
    """What was fitted, and the confidences it gives answers to questions that it has not seen."""

    slope: float
    offset: float
    unseen: list[float]


def fit_recalibration(
    confidence: Sequence[float], correct: Sequence[bool], questions: Sequence[str], *, seed: int = 0
) -> Recalibrated:
    """Fit the map on all answers, and on four fifths of the questions at a time for `unseen`.

    Args:
        confidence: the model's own confidences, one per answer.
        correct: their grades.
        questions: the question of each answer.
        seed: seed of the folds.

    Raises:
        UserInputError: fewer than ten questions.
    """
    from grace.probe import assign_folds

    if len(set(questions)) < FEWEST:
        raise UserInputError(
            f"there are graded answers to {len(set(questions))} questions; grade answers to at "
            f"least {FEWEST}, better 100"
        )
    confidence_N, correct_N = np.asarray(confidence), np.asarray(correct)
    fold_N, unseen_N = assign_folds(questions, FOLDS, seed), np.empty(len(confidence_N))
    for fold in range(FOLDS):
        held = fold_N == fold
        found = LogOdds.fit(confidence_N[~held], correct_N[~held])
        unseen_N[held] = found.transform(confidence_N[held])
    found = LogOdds.fit(confidence_N, correct_N)
    return Recalibrated(found.a, found.b, unseen_N.tolist())


def recalibratable(path: Path) -> Path:
    """Return the adapter directory of a run or adapter whose confidence can be mapped.

    Raises:
        ModelError: it is neither, or its c is read from bins or at the prompt.
    """
    folder = adapter_folder(path, None)
    if folder is None:
        raise ModelError(
            f"{path} is no run or adapter; recalibrate the one it was exported from, then export "
            "the result"
        )
    card = read_card(folder)
    if "rows" not in card:
        raise ModelError(f"{folder} has no grace.json that says how c is read; name a trained run")
    if card.get("cnf_id") is None or card.get("read_at") == "prompt":
        raise ModelError(
            f"the confidence of {path} is read "
            f"{'at the prompt' if card.get('cnf_id') is not None else 'from bins'}, which cannot "
            "be recalibrated; train one that is read where the response ends"
        )
    return folder


def write_recalibrated(folder: Path, out: Path, made: Recalibrated) -> None:
    """Copy an adapter with the map in its grace.json.

    Raises:
        ConfigError: `out` is taken.
    """
    check_vacant(out)
    card: dict[str, Any] = read_card(folder)
    before = Evidence.from_dict(card["evidence"]) if card.get("evidence") else Evidence.none()
    about = {"slope": made.slope, "offset": made.offset, "answers": len(made.unseen)}
    card |= {
        "evidence": before.mapped(made.slope, made.offset).to_dict(),
        "recalibrated": [*card.get("recalibrated", []), about],
    }

    def fill(partial: Path) -> None:
        shutil.copytree(folder, partial, dirs_exist_ok=True)
        write_json(partial / CARD, card)
        (partial / "README.md").write_text(model_card(card), encoding="utf-8")

    with disk_watched(out):
        replace_directory(out.absolute(), fill)
