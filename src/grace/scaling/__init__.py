"""Replay: what every strategy would have done with the samples that are already stored.

    pool = Pool(answers, correct, tokens, {"grace": confidences})
    scaling = replay(pool, ["sc", "grace-sc", "grace-es"], budgets=[1, 2, 4, 8], orders=50)
    print(scaling.estimate("grace-es", 8), scaling.difference("grace-es", "sc", 8))

The samples of every question are put in many seeded orders; the votes are those that a live run
would have seen, and so are the decisions (`tests/scaling` hold the two together).
"""

from __future__ import annotations

from grace.scaling.discrimination import PairWins, discrimination, pair_wins
from grace.scaling.guarantees import accuracy_threshold
from grace.scaling.pool import Pool
from grace.scaling.replaying import BUDGETS, replay
from grace.scaling.results import Curve, Estimate, Reach, Scaling, joined

__all__ = [
    "BUDGETS",
    "Curve",
    "Estimate",
    "PairWins",
    "Pool",
    "Reach",
    "Scaling",
    "accuracy_threshold",
    "discrimination",
    "joined",
    "pair_wins",
    "replay",
]
