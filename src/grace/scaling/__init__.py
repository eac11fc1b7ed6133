"""Replay: the decisions of every strategy on samples that are already stored.

    pool = Pool(answers, correct, tokens, {"grace": confidences})
    scaling = replay(pool, ["sc", "grace-sc", "grace-es"], budgets=[1, 2, 4, 8], orders=50)
    print(scaling.estimate("grace-es", 8), scaling.difference("grace-es", "sc", 8))

The samples of every question are taken in many random orders. Votes and decisions are those of a
live run that draws the samples in that order (`tests/scaling` compares the two).
"""

from __future__ import annotations

from grace.scaling.fitting import OWN as OWN
from grace.scaling.fitting import fit_vote as fit_vote
from grace.scaling.fitting import fit_weights as fit_weights
from grace.scaling.pool import Pool as Pool
from grace.scaling.replaying import BUDGETS as BUDGETS
from grace.scaling.replaying import accuracy_threshold as accuracy_threshold
from grace.scaling.replaying import replay as replay
from grace.scaling.results import Curve as Curve
from grace.scaling.results import PairWins as PairWins
from grace.scaling.results import Scaling as Scaling
from grace.scaling.results import discrimination as discrimination
from grace.scaling.results import pair_wins as pair_wins
