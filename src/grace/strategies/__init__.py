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

from grace.strategies.deciding import BUDGET as BUDGET
from grace.strategies.deciding import TEMPERATURE as TEMPERATURE
from grace.strategies.deciding import Strategy as Strategy
from grace.strategies.deciding import check_count as check_count
from grace.strategies.deciding import chosen as chosen
from grace.strategies.deciding import decide as decide
from grace.strategies.deciding import stopped as stopped
from grace.strategies.deciding import waves as waves
from grace.strategies.policies import POLICIES as POLICIES
from grace.strategies.policies import Policy as Policy
from grace.strategies.policies import load as load
from grace.strategies.policies import policy as policy
from grace.strategies.rules import AdaptiveConsistency as AdaptiveConsistency
from grace.strategies.rules import BestOfN as BestOfN
from grace.strategies.rules import EarlyStop as EarlyStop
from grace.strategies.rules import Majority as Majority
from grace.strategies.rules import SoftmaxWeighted as SoftmaxWeighted
from grace.strategies.rules import Weighted as Weighted
from grace.strategies.rules import WindowConsistency as WindowConsistency
from grace.strategies.vote import FittedVote as FittedVote
from grace.strategies.vote import fitted_vote as fitted_vote
