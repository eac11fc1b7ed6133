"""Ways to spend samples on one question: when to stop, and which answer to choose.

A strategy is two pure functions of a table of votes, one row per question, in order of arrival:
`stops(table)` and `chooses(table)`. `decide` gives them the votes of one question as they come from
any iterator: a generator over an engine is a live run, and closing it stops what is still being
sampled. `grace.scaling` gives them whole tables, and so replays many questions at once.

Two rules hold everywhere. A response without an extractable answer counts as a sample and casts
no vote. A tie goes to the answer with more votes, then to the one that was seen first; sums of
weights are exact (`tally`), so nothing else depends on the order of the votes.

To add one, write one file here that assigns `STRATEGY`, a frozen dataclass with `stops` and
`chooses`. Its fields are its settings; `reads_confidence = False` marks a strategy that only counts
answers.
"""

from __future__ import annotations

from grace.strategies.asc import AdaptiveConsistency
from grace.strategies.best import BestOfN
from grace.strategies.cisc import SoftmaxWeighted
from grace.strategies.deciding import (
    BUDGET,
    TEMPERATURE,
    Strategy,
    Waves,
    check_count,
    chosen,
    decide,
    stopped,
)
from grace.strategies.es import EarlyStop
from grace.strategies.esc import WindowConsistency
from grace.strategies.policies import POLICIES, Policy, load, policy
from grace.strategies.sc import Majority
from grace.strategies.weighted import Weighted

__all__ = [
    "BUDGET",
    "POLICIES",
    "TEMPERATURE",
    "AdaptiveConsistency",
    "BestOfN",
    "EarlyStop",
    "Majority",
    "Policy",
    "SoftmaxWeighted",
    "Strategy",
    "Waves",
    "Weighted",
    "WindowConsistency",
    "check_count",
    "chosen",
    "decide",
    "load",
    "policy",
    "stopped",
]
