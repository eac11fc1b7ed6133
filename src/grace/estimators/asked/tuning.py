"""Choosing a prompt on validation answers, as GrACE is tuned on them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from grace.calibration import Platt, log_losses
from grace.engines import Engine
from grace.errors import ModelError
from grace.estimators import Estimator, Fitted, Known, Samples, Values, ended_rows
from grace.estimators.recalibrated import logistic

SHOTS = (0, 4, 8)
MOST = 200  # validation answers on which candidates are compared
Score = Callable[[float], float]


def candidates(known: Known, templates: Sequence[str]) -> list[tuple[str, int]]:
    """Return every template with every number of shots that there are training answers for."""
    there = len(ended_rows(known.train))
    return list(itertools.product(templates, [count for count in SHOTS if count <= there]))


def tuned(
    choices: Sequence[Estimator], score: Score, known: Known, engine: Engine, seed: int
) -> Fitted:
    """Return the best estimator of several, with a logistic regression of its score after it.

    Each is compared by the log loss of such a regression on at most `MOST` validation answers; an
    answer that it gives no value counts with the share of right ones. One whose prompts the model
    cannot take is left out. Where none gives any value, neither does what is returned.

    Raises:
        ModelError: the model can take none of them.
    """
    few = known.validation.part(range(min(MOST, len(known.validation.responses))))
    losses: list[tuple[float, int]] = []
    fits: list[Fitted] = []
    refused: ModelError | None = None
    for choice in choices:
        try:
            made = choice.fit(known, engine, seed)
            scores = _scored(made, score)(few)
        except ModelError as error:
            refused = error
            continue
        if any(value is not None for value in scores):
            losses.append((_log_loss(scores, few.correct), len(fits)))
            fits.append(made)
    if not fits and refused is not None:
        raise refused
    if not fits:
        return Fitted(lambda samples: [None] * len(samples.responses))
    return logistic(_scored(fits[min(losses)[1]], score), known)


def _scored(made: Fitted, score: Score) -> Callable[[Samples], Values]:
    return lambda samples: [None if v is None else score(v) for v in made.rate(samples)]


def _log_loss(scores: Values, correct: Sequence[bool]) -> float:
    """Return the log loss of a logistic regression of the scores on the answers it is fitted on."""
    right_N = np.array(correct, dtype=float)
    known_N = np.array([value is not None for value in scores])
    p_N = np.full(len(right_N), (right_N.sum() + 1) / (len(right_N) + 2))
    found_K = np.array([value for value in scores if value is not None])
    p_N[known_N] = Platt.fit(found_K, right_N[known_N], loss="log").transform(found_K)
    return float(log_losses(p_N, right_N).mean())
