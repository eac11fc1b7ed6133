"""A trained confidence fitted to other questions: three numbers, from graded answers to these.

On other questions than it was trained on c may be too sure, or not sure enough; and what the hidden
states say of an answer may hold less well than what its log-probabilities say, or not at all. So
each of these two parts of c's log-odds gets a slope, and their sum an offset, which every engine
applies where it reads c (`grace.evidence`). The answers stay as they are.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grace.calibration import SLOPE_SPREAD, LogOdds, log_odds
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

Array = NDArray[np.float64]

FOLDS = 5
PART_SPREADS = (1.0, 0.3)  # the rows may say nothing of other questions (decision 005)
FEWEST = 10  # questions


class Recalibrated(NamedTuple):
    """What was fitted, and the confidences it gives answers to questions that it has not seen.

    Without log-probabilities both slopes are one and the same.
    """

    rows: float
    evidence: float
    offset: float
    unseen: list[float]


def parts(
    evidence: Evidence | None,
    confidence: Sequence[float],
    logprobs: Sequence[Sequence[float] | None],
) -> Array:
    """Return the parts of the log-odds of c, shape (2, N): what the rows say, and the evidence.

    Shape (1, N), their sum, where the model has no evidence or an answer no log-probabilities:
    those of its tokens and its end.
    """
    total_N = log_odds(confidence)
    known = [one for one in logprobs if one]
    if evidence is None or len(known) < len(logprobs):
        return total_N[None]
    shift_N = np.array([evidence.slope * evidence.of(one[:-1], one[-1]) for one in known])
    return np.stack([total_N - shift_N, shift_N])


def fit_recalibration(
    parts_PN: Array, correct: Sequence[bool], questions: Sequence[str], *, seed: int = 0
) -> Recalibrated:
    """Fit the map on all answers, and on four fifths of the questions at a time for `unseen`.

    Args:
        parts_PN: the parts of the answers' log-odds (see `parts`).
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
    spread = SLOPE_SPREAD if len(parts_PN) == 1 else PART_SPREADS
    correct_N = np.asarray(correct)
    fold_N, unseen_N = assign_folds(questions, FOLDS, seed), np.empty(len(correct_N))
    for fold in range(FOLDS):
        held = fold_N == fold
        found = LogOdds.fit(parts_PN[:, ~held], correct_N[~held], spread)
        unseen_N[held] = found.transform(parts_PN[:, held])
    found = LogOdds.fit(parts_PN, correct_N, spread)
    return Recalibrated(found.a[0], found.a[-1], found.b, unseen_N.tolist())


def recalibratable(path: Path) -> Path:
    """Return the adapter directory of a run or adapter whose confidence can be mapped.

    Raises:
        ModelError: it is neither, or its c is read from bins or at the prompt.
    """
    folder = adapter_folder(path, None)
    if folder is None:
        raise ModelError(
            f"{path} is neither a run nor an adapter; name one, or that from which a model was "
            "exported"
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
    *fitted, unseen = made
    about = dict(zip(("rows", "evidence", "offset"), fitted, strict=True))
    card |= {
        "evidence": (Evidence.in_card(card) or Evidence.none()).mapped(*fitted).to_dict(),
        "recalibrated": [*card.get("recalibrated", []), {**about, "answers": len(unseen)}],
    }

    def fill(partial: Path) -> None:
        shutil.copytree(folder, partial, dirs_exist_ok=True)
        write_json(partial / CARD, card)
        (partial / "README.md").write_text(model_card(card), encoding="utf-8")

    with disk_watched(out):
        replace_directory(out.absolute(), fill)
