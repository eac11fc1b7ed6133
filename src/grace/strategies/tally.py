"""A table of the votes on many questions, and the answer with the largest sum of weights.

Weights are rounded to 12 decimals and added as whole numbers. So sums are exact: they do not depend
on the order of the votes, and 80% ties with twice 40%.

Shapes: R rows (a question in one order of its samples), T votes per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grace.records import Vote

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

UNITS = 1e12


class VoteTable(NamedTuple):
    """The votes on many questions, in order of arrival.

    An entry of `answer_RT` is the position in its row where that answer was first seen, -1 for a
    vote without an answer; `confidence_RT` is nan for a vote without a confidence.
    """

    answer_RT: Indices
    confidence_RT: Floats

    @classmethod
    def of(cls, votes: Sequence[Vote]) -> VoteTable:
        """Make a table of one row of the votes on one question."""
        first: dict[str, int] = {}
        places = [
            -1 if vote.answer is None else first.setdefault(vote.answer, place)
            for place, vote in enumerate(votes)
        ]
        values = [np.nan if vote.confidence is None else vote.confidence for vote in votes]
        return cls(np.array([places], dtype=np.intp), np.array([values], dtype=np.float64))

    def until(self, ends_R: Indices, width: int) -> VoteTable:
        """Return the first `ends_R` (at most `width`) votes of each row; the others lose theirs."""
        cut = VoteTable(self.answer_RT[:, :width], self.confidence_RT[:, :width])
        if ends_R.min(initial=width) >= width:
            return cut
        kept_RT = np.arange(width) < ends_R[:, None]
        return cut._replace(answer_RT=np.where(kept_RT, cut.answer_RT, -1))


class FixedBudget:
    """Base of the strategies that always spend the whole budget."""

    __slots__ = ()

    def stops(self, table: VoteTable) -> Indices:
        """Never stop before the budget is spent."""
        rows, width = table.answer_RT.shape
        return np.full(rows, width + 1)


def heaviest_rows(answer_RT: Indices, weight_RT: Floats | None = None) -> Indices:
    """Return the answer of each row with the largest sum of weights, -1 for a row without a vote.

    Weights are in [0, 1]; without them every vote weighs the same. A tie goes to the answer with
    more votes, then to the one that was seen first.
    """
    rows, width = answer_RT.shape
    place_RT = answer_RT + np.arange(rows)[:, None] * width
    place_RT[answer_RT < 0] = rows * width

    def add(weights: Floats | None) -> Floats:
        added = np.bincount(place_RT.ravel(), weights, minlength=rows * width + 1)
        return added[:-1].reshape(rows, width).astype(np.float64, copy=False)

    count_RT = add(None)
    if weight_RT is not None:
        total_RT = add(np.rint(weight_RT * UNITS).ravel())
        count_RT[total_RT < total_RT.max(axis=1, keepdims=True)] = 0
    chosen_R: Indices = count_RT.argmax(axis=1)
    chosen_R[count_RT[np.arange(rows), chosen_R] == 0] = -1
    return chosen_R
