"""The strategies: when to stop, and which answer to choose."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from grace.config import setting
from grace.strategies.tally import FixedBudget, Indices, VoteTable, heaviest_rows


@dataclass(frozen=True, slots=True)
class Majority(FixedBudget):
    """Self-consistency: a plain majority vote.

    The most frequent answer of the whole budget (SC).
    Source: Wang et al. 2022 (arXiv 2203.11171).
    """

    reads_confidence: ClassVar[bool] = False

    def chooses(self, table: VoteTable) -> Indices:
        """Choose the answer with the most votes."""
        return heaviest_rows(table.answer_RT)


@dataclass(frozen=True, slots=True)
class BestOfN(FixedBudget):
    """Best-of-n: the answer of the surest sample.

    Of equals, the first.
    A sample without a confidence comes after all that have one.

    Source: Stiennon et al. 2020 (arXiv 2009.01325), with a confidence in place of a reward.
    """

    def chooses(self, table: VoteTable) -> Indices:
        """Choose the answer of the surest sample."""
        sure_RT = np.nan_to_num(table.confidence_RT, nan=-1.0)
        sure_RT[table.answer_RT < 0] = -2
        best_R = sure_RT.argmax(axis=1)
        chosen_R: Indices = table.answer_RT[np.arange(len(best_R)), best_R]
        return chosen_R


@dataclass(frozen=True, slots=True)
class Weighted(FixedBudget):
    """GrACE-SC: a vote weighted by confidence.

    The answer with the largest sum of confidences.
    A vote without a confidence weighs nothing; when none has one this is a majority vote.

    Source: arXiv 2509.09438 eq. 8.
    """

    def chooses(self, table: VoteTable) -> Indices:
        """Choose the answer with the largest sum of confidences."""
        return heaviest_rows(table.answer_RT, np.nan_to_num(table.confidence_RT, nan=0.0))


@dataclass(frozen=True, slots=True)
class SoftmaxWeighted(FixedBudget):
    """CISC: a vote weighted by the softmax of the confidences.

    Confidence-informed self-consistency: votes weigh softmax(confidence / temperature).
    The softmax is over the votes of the question that have an answer and a confidence; the
    others weigh nothing. A high temperature makes this SC, a low one best-of-n. The paper tunes it
    per model and method on held-out questions; the default here is only a start.

    Source: Taubenfeld et al. 2025 (arXiv 2502.06233).
    """

    temperature: float = setting(0.3, "temperature of the softmax", low=1e-3)

    def chooses(self, table: VoteTable) -> Indices:
        """Choose the answer with the largest sum of weights."""
        rated_RT = (table.answer_RT >= 0) & ~np.isnan(table.confidence_RT)
        value_RT = np.where(rated_RT, table.confidence_RT, -np.inf)
        top_R1 = value_RT.max(axis=1, keepdims=True, initial=-1.0)
        # In units of the largest weight, which leaves the order of the sums as it is.
        weight_RT = np.exp((value_RT - top_R1) / self.temperature)
        return heaviest_rows(table.answer_RT, weight_RT)


@dataclass(frozen=True, slots=True)
class EarlyStop:
    """GrACE-ES: stop at the first sample that is sure enough.

    Where none is, the vote is that of GrACE-SC.
    No confidence reaches a threshold above 1: then this is GrACE-SC.

    Source: arXiv 2509.09438 Algorithm 1.
    """

    threshold: float = setting(0.8, "confidence at which a sample's answer is taken", low=0)

    def stops(self, table: VoteTable) -> Indices:
        """Stop at the first vote that has an answer and reaches the threshold."""
        sure_RT = self._sure_rows(table)
        last_R = np.where(sure_RT.any(axis=1), sure_RT.argmax(axis=1), sure_RT.shape[1])
        stop_R: Indices = last_R + 1
        return stop_R

    def chooses(self, table: VoteTable) -> Indices:
        """Choose the sure answer, or the weighted vote over all samples."""
        sure_RT = self._sure_rows(table)
        first_R = sure_RT.argmax(axis=1)
        chosen_R: Indices = table.answer_RT[np.arange(len(first_R)), first_R]
        unsure_R = ~sure_RT.any(axis=1)
        rest = VoteTable(table.answer_RT[unsure_R], table.confidence_RT[unsure_R])
        chosen_R[unsure_R] = Weighted().chooses(rest)
        return chosen_R

    def _sure_rows(self, table: VoteTable) -> NDArray[np.bool_]:
        sure_RT: NDArray[np.bool_] = table.confidence_RT >= self.threshold
        return sure_RT & (table.answer_RT >= 0)


@dataclass(frozen=True, slots=True)
class WindowConsistency:
    """ESC: stop when a window of samples agrees.

    Early-stopping self-consistency: stop after the first unanimous window.
    Windows do not overlap. The answer is that of the unanimous window, or else the majority of the
    whole budget, including a last part shorter than a window (which the published code leaves out).
    With a budget smaller than the window this is SC. The published window is 5, at a budget of 40;
    only 4 is consistent with the mean numbers of samples of arXiv 2509.09438 at a budget of 8.

    Source: Li et al. 2024 (arXiv 2401.10480).
    """

    reads_confidence: ClassVar[bool] = False

    window: int = setting(4, "number of consecutive samples that must agree", low=1)

    def stops(self, table: VoteTable) -> Indices:
        """Stop at the end of the first window whose votes are all for one answer."""
        width = table.answer_RT.shape[1]
        agreed_RW = self._windows(table) >= 0
        ends_R: Indices = (agreed_RW.cumsum(axis=1) == 0).sum(axis=1) * self.window + self.window
        return np.where(agreed_RW.any(axis=1), ends_R, width + 1)

    def chooses(self, table: VoteTable) -> Indices:
        """Choose the answer of the first unanimous window, else the majority's."""
        chosen_R = heaviest_rows(table.answer_RT)
        for agreed_R in self._windows(table).T[::-1]:
            chosen_R = np.where(agreed_R >= 0, agreed_R, chosen_R)
        return chosen_R

    def _windows(self, table: VoteTable) -> Indices:
        """Return the answer of each complete window, -1 where it is not unanimous."""
        rows, width = table.answer_RT.shape
        whole = width // self.window
        answer_RWS = table.answer_RT[:, : whole * self.window].reshape(rows, whole, self.window)
        same_RW = (answer_RWS == answer_RWS[:, :, :1]).all(axis=2)
        return np.where(same_RW, answer_RWS[:, :, 0], -1)


@dataclass(frozen=True, slots=True)
class AdaptiveConsistency:
    """ASC: stop when the leading answer leads by enough.

    Adaptive consistency: stop when the majority is settled, and return it.
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


STRATEGIES = {
    "sc": Majority,
    "best": BestOfN,
    "weighted": Weighted,
    "cisc": SoftmaxWeighted,
    "es": EarlyStop,
    "esc": WindowConsistency,
    "asc": AdaptiveConsistency,
}
