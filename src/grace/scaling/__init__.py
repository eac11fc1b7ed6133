"""Replay: what every strategy would have done with the samples that are already stored.

    pool = Pool(answers, correct, tokens, {"grace": confidences})
    scaling = replay(pool, ["sc", "grace-sc", "grace-es"], budgets=[1, 2, 4, 8], orders=50)
    for point in scaling.points():
        print(point.policy, point.budget, point.accuracy, point.samples)

The samples of every question are put in many seeded orders; the votes are those that a live run
would have seen, and so are the decisions (`tests/scaling` hold the two together).
"""

from __future__ import annotations

from grace.scaling.discrimination import PairWins, discrimination, pair_wins
from grace.scaling.guarantees import (
    BrokenPromises,
    accuracy_threshold,
    broken_promises,
    no_worse_threshold,
)
from grace.scaling.pool import Pool
from grace.scaling.replaying import BUDGETS, replay
from grace.scaling.results import Curve, Estimate, Point, Reach, Scaling, joined

__all__ = [
    "BUDGETS",
    "BrokenPromises",
    "Curve",
    "Estimate",
    "PairWins",
    "Point",
    "Pool",
    "Reach",
    "Scaling",
    "accuracy_threshold",
    "broken_promises",
    "discrimination",
    "joined",
    "no_worse_threshold",
    "pair_wins",
    "replay",
]
