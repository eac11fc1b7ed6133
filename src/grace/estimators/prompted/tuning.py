"""The choice of a prompt on validation answers, on which GrACE is tuned, too."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from grace.calibration import Platt, log_losses
from grace.engines import Engine
from grace.errors import ComputeError, ModelError
from grace.estimators import Estimator, Fitted, Samples, Splits, Values, ended_rows
from grace.estimators.recalibrated import logistic

SHOTS = (0, 4, 8)
MOST = 200  # validation answers on which prompts are compared
Score = Callable[[float], float]


def candidates(splits: Splits, templates: Iterable[str]) -> list[tuple[Any, int]]:
    """Return every template with every number of shots that the training answers suffice for."""
    available = len(ended_rows(splits.train))
    return list(itertools.product(templates, [count for count in SHOTS if count <= available]))


def tuned(
    choices: Iterable[Estimator], score: Score, splits: Splits, engine: Engine, seed: int
) -> Fitted:
    """Choose the best of several estimators, and put a logistic regression of its score after it.

    They are compared by the log loss of such a regression on at most `MOST` validation answers; for
    an answer without a value the share of right answers is taken. Those whose prompts the model
    cannot take are left out. If none gives any value, the result gives None to every answer.
    """
    few = splits.validation.part(range(min(MOST, len(splits.validation.responses))))
    tried: list[tuple[Fitted, Values]] = []
    refused: ModelError | None = None
    for choice in choices:
        try:
            fitted = choice.fit(splits, engine, seed)
            tried.append((fitted, _scored(fitted, score)(few)))
        except ComputeError:  # says nothing about the prompt
            raise
        except ModelError as error:
            refused = error
    if refused is not None and not tried:
        raise refused
    useful = [one for one in tried if any(value is not None for value in one[1])]
    if not useful:
        return Fitted(lambda samples: [None] * len(samples.responses))
    best, _ = min(useful, key=lambda one: _log_loss(one[1], few.correct))
    return logistic(_scored(best, score), splits)


def _scored(fitted: Fitted, score: Score) -> Callable[[Samples], Values]:
    return lambda samples: [None if v is None else score(v) for v in fitted.rate(samples)]


def _log_loss(scores: Values, correct: Sequence[bool]) -> float:
    """Return the training loss of a logistic regression of correctness on the scores."""
    right_N = np.array(correct, dtype=float)
    scored_N = np.array([value is not None for value in scores])
    p_N = np.full(len(right_N), (right_N.sum() + 1) / (len(right_N) + 2))
    score_K = np.array([value for value in scores if value is not None])
    p_N[scored_N] = Platt.fit(score_K, right_N[scored_N], loss="log").transform(score_K)
    return float(log_losses(p_N, right_N).mean())
