"""ASC: stop when the leading answer leads by enough."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Literal

import numpy as np

from grace.config import setting
from grace.strategies.tally import Indices, VoteTable, heaviest_rows


@dataclass(frozen=True, slots=True)
class AdaptiveConsistency:
    """Adaptive consistency (ASC): stop when the majority is settled, and return it.

    With rule `ratio`, stop when the share of the leading answer among at least two samples reaches
    the threshold, as arXiv 2509.09438 describes and its mean numbers of samples suggest. With rule
    `beta`, as published, stop when the posterior probability that the leader is more likely than
    the runner-up reaches the threshold; at 0.95, the published one, that takes at least 4 samples.
    arXiv 2509.09438 does not name its threshold. With a budget of at most 2 (under `beta` at 0.95,
    of at most 4) this is SC.

    Source: Aggarwal et al. 2023 (arXiv 2305.11860).
    """

    reads_confidence: ClassVar[bool] = False

    rule: Literal["ratio", "beta"] = setting(
        "ratio",
        "ratio: stop at a share of the samples for the leading answer; beta: at a probability that "
        "it leads",
    )
    threshold: float = setting(0.95, "share or probability at which to stop", low=0)

    def stops(self, table: VoteTable) -> Indices:
        """Stop when the leading answer leads by enough."""
        rows, width = table.answer_RT.shape
        stop_R = np.full(rows, width + 1)
        least_S = _least_leads(self.threshold, width) if self.rule == "beta" else None
        for taken, (top_R, second_R) in enumerate(_leads(table.answer_RT), start=1):
            if least_S is None:
                enough_R = (top_R / taken >= self.threshold) & (taken > 1)
            else:
                enough_R = top_R >= least_S[second_R]
            stop_R[enough_R & (stop_R > width)] = taken
        return stop_R

    def chooses(self, table: VoteTable) -> Indices:
        """Choose the answer with most votes."""
        return heaviest_rows(table.answer_RT)


@cache
def lead_probability(top: int, second: int) -> float:
    """Return P(p > 1/2) for p ~ Beta(top + 1, second + 1): the leader is the more likely answer.

    In closed form P(Binomial(top + second + 1, 1/2) <= top).
    """
    trials = top + second + 1
    ways = sum(math.comb(trials, k) for k in range(top + 1))
    return float(ways / 2**trials)


@cache
def _least_leads(threshold: float, width: int) -> Indices:
    """Return, for each count of the runner-up, the least count of the leader that is enough.

    A runner-up with more votes needs a leader with more. `width` + 1 is never reached.
    """
    least, top = [], 0
    for second in range(width // 2 + 1):
        while top <= width and lead_probability(top, second) < threshold:
            top += 1
        least.append(top)
    return np.array(least)


def _leads(answer_RT: Indices) -> Iterator[tuple[Indices, Indices]]:
    """Yield, after each vote, the two largest counts of every row."""
    rows = np.arange(len(answer_RT))
    count_RT = np.zeros_like(answer_RT)
    top_R, second_R, leader_R = (np.zeros(len(rows), np.intp) for _ in range(3))
    leader_R -= 1
    for answer_R in answer_RT.T:
        count_RT[rows, answer_R] += answer_R >= 0
        count_R = np.where(answer_R >= 0, count_RT[rows, answer_R], 0)
        overtakes_R = (count_R > top_R) & (answer_R != leader_R)
        second_R = np.where(overtakes_R, top_R, second_R)
        follows_R = ~overtakes_R & (answer_R != leader_R)
        second_R = np.where(follows_R, np.maximum(second_R, count_R), second_R)
        leader_R = np.where(overtakes_R, answer_R, leader_R)
        top_R = np.maximum(top_R, count_R)
        yield top_R, second_R


STRATEGY = AdaptiveConsistency
