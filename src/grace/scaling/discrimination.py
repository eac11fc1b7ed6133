"""Within-question discrimination of a pool's confidences, question by question.

Shapes: Q questions, S samples.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

from grace.metrics import Estimate, Resamples, estimate
from grace.scaling.pool import Pool
from grace.strategies.tally import Floats


class PairWins(NamedTuple):
    """The pairs of a right and a wrong sample of each question, and those that the right one wins.

    The right sample wins when its confidence is higher; a tie is half a win.
    """

    wins_Q: Floats
    pairs_Q: Floats


def pair_wins(pool: Pool, estimator: str) -> PairWins:
    """Count the pairs and the wins of an estimator; samples without a confidence are in no pair."""
    value_QS = pool.confidence(estimator)
    rated_QS = ~np.isnan(value_QS)
    right_QS, wrong_QS = rated_QS & pool.correct_QS, rated_QS & ~pool.correct_QS
    wins_Q = np.zeros(pool.num_questions)
    for at in range(pool.num_samples):
        mine_Q1 = value_QS[:, at, None]
        won_QS = (mine_Q1 > value_QS) + 0.5 * (mine_Q1 == value_QS)
        wins_Q += right_QS[:, at] * (won_QS * wrong_QS).sum(axis=1)
    pairs_Q = (right_QS.sum(axis=1) * wrong_QS.sum(axis=1)).astype(np.float64)
    return PairWins(wins_Q, pairs_Q)


def discrimination(
    questions: Sequence[Sequence[Hashable]], parts: Sequence[PairWins]
) -> Estimate | None:
    """Return the mean of WQD over seeds with its interval over questions and seeds.

    None when no question of any seed has both a right and a wrong sample. Source: Taubenfeld et
    al. 2025, arXiv 2502.06233, section 5; see `grace.metrics.wqd`.
    """
    resamples = Resamples([name for part in questions for name in part])
    found = estimate(
        [
            resamples.ratios(own, part.wins_Q[None], part.pairs_Q)[:, 0]
            for own, part in zip(questions, parts, strict=True)
        ]
    )
    return None if np.isnan(found.value) else found
