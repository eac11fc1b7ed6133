"""GrACE-vote: the probability that the leading answer of a vote is right.

Every answer that has votes, and "another one", gets log-odds that are linear in what its votes say:
`FEATURES`. Their softmax is a distribution over the answers. Samples of one question are not
independent, so the weights are fitted (`grace.scaling.fitting`); `FREE` are those without a fit.

Shapes: R rows (a question in one order of its samples), T votes per row, K features.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grace.config import from_dict, setting
from grace.errors import ConfigError, RunError
from grace.store import read_json
from grace.strategies.tally import Floats, Indices, VoteTable

FEATURES = (
    "sum of the log-odds of c / sqrt(votes)",
    "votes",
    "largest log-odds of c",
    "log(votes)",
    "another answer: 1",
    "another answer: log(samples)",
)
FREE = (1.0, 0.0, 0.0, 0.0, 0.0, 0.0)
FILE = "vote.json"  # in a run or an export
SETTINGS = ("threshold", "fall", "weights")  # its entries; the others say what it was fitted to
UNSET = 1.0  # the threshold of a vote that no fit and no user has given one
NEAREST = 1e-3  # c counts as no nearer to 0 or to 1 than this
FINEST = 2.0**-40  # log-odds are rounded to multiples of it: of these a float64 holds exact sums


class Tally(NamedTuple):
    """What the first `taken` votes of each row say of the answer first seen at each place: (R, T).

    A vote without a confidence counts, and leaves the log-odds as they are.
    """

    taken: int
    count_RT: Floats
    odds_RT: Floats
    top_RT: Floats

    def features(self) -> Floats:
        """Return `FEATURES` of the places taken, then of another answer: (K, R, taken + 1)."""
        count_RT, odds_RT, top_RT = (each[:, : self.taken] for each in self[1:])
        voted_RT = np.maximum(count_RT, 1)
        found = np.zeros((len(FEATURES), len(count_RT), self.taken + 1))
        found[0, :, :-1] = odds_RT / np.sqrt(voted_RT)
        found[1, :, :-1] = count_RT
        found[2, :, :-1] = np.where(top_RT > -np.inf, top_RT, 0.0)
        found[3, :, :-1] = np.log(voted_RT)
        found[4, :, -1] = 1.0
        found[5, :, -1] = math.log(self.taken)
        return found

    def given(self) -> NDArray[np.bool_]:
        """Return the places that have votes, and true for another answer: (R, taken + 1)."""
        given_RT = self.count_RT[:, : self.taken] > 0
        return np.pad(given_RT, ((0, 0), (0, 1)), constant_values=True)


def posterior(
    weights: Sequence[float] | Floats, found_KRA: Floats, given_RA: NDArray[np.bool_]
) -> Floats:
    """Return the probability of each place and of another answer: (R, A)."""
    score_RA = np.zeros(given_RA.shape)
    for weight, each_RA in zip(weights, found_KRA, strict=True):
        score_RA += weight * each_RA
    score_RA[~given_RA] = -np.inf
    mass_RA = np.exp(score_RA - score_RA.max(axis=1, keepdims=True))
    # summed one by one, so that places without votes change nothing
    p_RA: Floats = mass_RA / mass_RA.cumsum(axis=1)[:, -1:]
    return p_RA


def tallies(table: VoteTable) -> Iterator[Tally]:
    """Yield what the votes say after each one; the arrays are written again for the next."""
    c_RT = np.clip(table.confidence_RT, NEAREST, 1 - NEAREST)
    odds_RT = np.rint(np.log(c_RT / (1 - c_RT)) / FINEST) * FINEST
    count_RT, sum_RT = np.zeros(odds_RT.shape), np.zeros(odds_RT.shape)
    top_RT = np.full(odds_RT.shape, -np.inf)
    for at, (answer_R, odds_R) in enumerate(zip(table.answer_RT.T, odds_RT.T, strict=True)):
        row = np.flatnonzero(answer_R >= 0)
        count_RT[row, answer_R[row]] += 1
        row = row[~np.isnan(odds_R[row])]
        place = answer_R[row]
        sum_RT[row, place] += odds_R[row]
        top_RT[row, place] = np.maximum(top_RT[row, place], odds_R[row])
        yield Tally(at + 1, count_RT, sum_RT, top_RT)


@dataclass(frozen=True, slots=True)
class FittedVote:
    """GrACE-vote: a posterior over the answers, fitted to validation votes.

    Its confidence is the probability that the chosen answer is right. It stops once that reaches
    the threshold, which is lower after more samples: each doubling must be worth something.
    Without a fit (`grace scale` makes it) the weights are fixed.

    Source: ours; of the kind of CGES (arXiv 2511.02603), which takes samples as independent.
    """

    threshold: float = setting(
        UNSET, "P(right) at which to stop after one sample; 1: as fitted, if it was", low=0
    )
    fall: float = setting(0.2, "how much lower it is after each doubling of the samples", low=0)
    weights: tuple[float, ...] = field(default=FREE, repr=False)

    def __post_init__(self) -> None:
        if len(self.weights) != len(FEATURES):
            raise ConfigError(
                f"a vote has {len(FEATURES)} weights, not {len(self.weights)}; fit it again with "
                "`grace scale`"
            )

    def stops(self, table: VoteTable) -> Indices:
        """Stop at the first vote after which the leading answer is probable enough."""
        return self.stop(*self.leading(table))

    def leading(self, table: VoteTable) -> tuple[Indices, Floats]:
        """Return the leading answer after each vote (-1: none), and its probability: (R, T)."""
        chosen, right = zip(*map(self._leading, tallies(table)), strict=True)
        return np.stack(chosen, axis=1), np.stack(right, axis=1)

    def stop(self, chosen_RT: Indices, right_RT: Floats) -> Indices:
        """Return the number of votes at which each row stops; one more than there are: nowhere."""
        width = chosen_RT.shape[1]
        least = [self.threshold - self.fall * math.log2(taken) for taken in range(1, width + 1)]
        sure_RT = (chosen_RT >= 0) & (right_RT >= least)
        first_R: Indices = np.where(sure_RT.any(axis=1), sure_RT.argmax(axis=1), width) + 1
        return first_R

    def chooses(self, table: VoteTable) -> Indices:
        """Choose the most probable answer."""
        return self._decided(table)[0]

    def confidence(self, table: VoteTable) -> Floats:
        """Return the probability that the chosen answer is right: (R,)."""
        return self._decided(table)[1]

    def learnt(self, fitted: FittedVote | None) -> FittedVote:
        """Return this vote with the weights of a fit, and its threshold unless one was set."""
        if fitted is None:
            return self
        own = self.threshold != UNSET
        return replace(fitted, threshold=self.threshold, fall=self.fall) if own else fitted

    def _decided(self, table: VoteTable) -> tuple[Indices, Floats]:
        *_, last = tallies(table)
        return self._leading(last)

    def _leading(self, tally: Tally) -> tuple[Indices, Floats]:
        """Return each row's leading answer (-1: none has votes), and the probability of it.

        A tie goes to the answer with more votes, then to the one that was seen first.
        """
        right_RT = posterior(self.weights, tally.features(), tally.given())[:, :-1]
        most_R1 = right_RT.max(axis=1, keepdims=True)
        votes_RT = np.where(right_RT == most_R1, tally.count_RT[:, : tally.taken], 0)
        chosen_R = np.where(votes_RT.any(axis=1), votes_RT.argmax(axis=1), -1)
        return chosen_R, most_R1[:, 0]


def fitted_vote(path: Path) -> FittedVote | None:
    """Return the vote that was fitted for the model in a directory, None without one."""
    file = path / FILE
    if not file.exists():
        return None
    try:
        stored = read_json(file)
        return from_dict(FittedVote, {name: stored[name] for name in SETTINGS}, str(file))
    except (ConfigError, KeyError, TypeError) as error:
        raise RunError(
            f"{file} is not a fitted vote ({error}); remove it, and fit it again: grace scale"
        ) from None


STRATEGY = FittedVote
