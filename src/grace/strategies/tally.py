"""Counting weighted votes: of one question as a list, of many as a table, with one outcome.

Weights are rounded to multiples of 2^-40 (1e-12) and added as whole numbers. So sums are exact:
they depend neither on the order of the votes nor on which of the two functions adds them.

Shapes: R rows (a question in one order of its samples), T votes per row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grace.records import Vote

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

UNITS = 2.0**40


class VoteTable(NamedTuple):
    """The votes of many questions.

    `answer_RT` names an answer by the position in its row where it was first seen, -1 for none;
    `confidence_RT` is nan where there is none.
    """

    answer_RT: Indices
    confidence_RT: Floats

    def until(self, ends_R: Indices, width: int) -> VoteTable:
        """Return the first `ends_R` (at most `width`) votes of each row; the others lose theirs."""
        cut = VoteTable(self.answer_RT[:, :width], self.confidence_RT[:, :width])
        if ends_R.min(initial=width) >= width:
            return cut
        kept_RT = np.arange(width) < ends_R[:, None]
        return cut._replace(answer_RT=np.where(kept_RT, cut.answer_RT, -1))


def heaviest(votes: Sequence[Vote], weights: Iterable[float]) -> str | None:
    """Return the answer with the largest sum of weights in [0, 1], None without any vote.

    A tie goes to the answer with more votes, then to the one that was seen first.
    """
    totals: dict[str, tuple[int, int]] = {}
    for vote, weight in zip(votes, weights, strict=True):
        if vote.answer is not None:
            total, count = totals.get(vote.answer, (0, 0))
            totals[vote.answer] = (total + round(weight * UNITS), count + 1)
    return max(totals, key=lambda answer: totals[answer], default=None)


def heaviest_rows(answer_RT: Indices, weight_RT: Floats | None = None) -> Indices:
    """Return `heaviest` of each row, as the position of its first vote; -1 without any vote.

    Without weights every vote weighs the same.
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


def never(table: VoteTable) -> Indices:
    """Return the stops of a strategy that always spends the whole budget."""
    rows, width = table.answer_RT.shape
    return np.full(rows, width + 1)
