"""The stored samples of many questions, as arrays.

Shapes: Q questions, S samples of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from grace.errors import UserInputError
from grace.metrics.kernels import check
from grace.strategies.tally import Floats, Indices

Order = NDArray[np.intp]


class Pool:
    """S graded samples of each of Q questions."""

    def __init__(
        self,
        answers: ArrayLike,
        correct: ArrayLike,
        tokens: ArrayLike | None = None,
        confidences: Mapping[str, ArrayLike] | None = None,
    ) -> None:
        """Check arrays of shape (Q, S); answers are equal codes for equal answers, -1 for none."""
        codes = np.asarray(answers)
        if codes.ndim != 2 or not codes.size or not np.issubdtype(codes.dtype, np.integer):
            raise UserInputError(
                f"answers have shape {codes.shape} and type {codes.dtype}; "
                "give whole numbers, one row per question and one column per sample"
            )
        # the first sample with that answer, -1: none; a sample without an answer is never right
        self.answer_QS = _first_seen(codes.astype(np.intp))
        right_N = self._like(correct, "correct").ravel()
        checked_N = check(np.zeros(codes.size), right_N)[1].astype(bool)
        self.correct_QS = checked_N.reshape(codes.shape) & (self.answer_QS >= 0)
        empty = np.zeros(codes.shape, dtype=np.intp)
        self.tokens_QS = empty if tokens is None else self._like(tokens, "tokens").astype(np.intp)
        self.confidences = dict[str, Floats]()
        for name, values in (confidences or {}).items():
            self.confidences[name] = self._like(values, name).astype(np.float64)  # None: nan
            check(np.nan_to_num(self.confidences[name]).ravel(), right_N)

    @classmethod
    def from_answers(
        cls,
        answers: ArrayLike | Sequence[Sequence[Any]],
        correct: ArrayLike,
        tokens: ArrayLike | None = None,
        confidences: Mapping[str, ArrayLike] | None = None,
    ) -> Pool:
        """Make a pool of answers as texts, None, nan or NA for none, as many of each question."""
        table = np.asarray(answers, dtype=object)
        if table.ndim != 2 or not table.size:
            raise UserInputError(
                f"answers have shape {table.shape}; give a list of texts for each question, as "
                "many for each: fill the others up with None"
            )
        codes = []
        for row in table:
            known = [*map(_known, row)]
            code = {answer: at for at, answer in enumerate(known)} | {None: -1}
            codes.append([code[answer] for answer in known])
        return cls(codes, correct, tokens, confidences)

    @property
    def num_questions(self) -> int:
        """Q."""
        return len(self.answer_QS)

    @property
    def num_samples(self) -> int:
        """S."""
        return int(self.answer_QS.shape[1])

    def confidence(self, estimator: str | None) -> Floats:
        """Return an estimator's confidences (Q, S); all nan for None."""
        if estimator is None:
            return np.full(self.answer_QS.shape, np.nan)
        if estimator not in self.confidences:
            available = ", ".join(self.confidences) or "none"
            raise UserInputError(
                f"the pool has no confidences of {estimator!r} (it has: {available}); "
                "score the samples with it first, or leave out its strategies"
            )
        return self.confidences[estimator]

    def check_budgets(self, budgets: Sequence[int]) -> None:
        """Check that budgets are between 1 and the number of stored samples."""
        if not budgets or min(budgets) < 1 or max(budgets) > self.num_samples:
            raise UserInputError(
                f"budgets {', '.join(map(str, budgets)) or '(none)'} do not fit: the pool holds "
                f"{self.num_samples} samples of each question; give budgets of 1 to that many"
            )

    def take(self, questions: ArrayLike, samples: Indices | None = None) -> Pool:
        """Return the pool of some questions, in that order and with repeats.

        `samples` (R, S) are those that are kept of each, in that order; by default all as stored.
        """
        rows = np.asarray(questions)
        at = rows if samples is None else (rows[:, None], samples)
        return Pool(
            self.answer_QS[at],
            self.correct_QS[at],
            self.tokens_QS[at],
            {name: value[at] for name, value in self.confidences.items()},
        )

    def orders(self, count: int, seed: int = 0) -> Iterator[Order]:
        """Yield random orders (Q, S) of each question's samples, each with a seed of its own."""
        places = np.broadcast_to(np.arange(self.num_samples), self.answer_QS.shape)
        for number in range(count):
            yield np.random.default_rng([seed, number]).permuted(places, axis=1)

    def _like(self, values: ArrayLike, name: str) -> NDArray[Any]:
        array = np.asarray(values)
        if array.dtype == object:
            array = np.vectorize(_known, otypes=[object])(array)
        if array.shape != self.answer_QS.shape:
            raise UserInputError(
                f"{name} has shape {array.shape}, the answers {self.answer_QS.shape}; "
                "give one value per sample"
            )
        return array


def _known(value: Any) -> Any:
    """Return a value, None if it is missing: nan, and NA and NaT of pandas, equal nothing."""
    same = value == value
    return value if isinstance(same, bool | np.bool_) and same else None


def _first_seen(code_RT: Indices) -> Indices:
    """Replace each answer, a code or below 0 for none, by the position where it was first seen."""
    order_RT = code_RT.argsort(axis=1, kind="stable")  # equal answers in the order of their votes
    sorted_RT = np.take_along_axis(code_RT, order_RT, axis=1)
    new_RT = np.diff(sorted_RT, axis=1, prepend=sorted_RT[:, :1]) > 0
    start_RT = np.maximum.accumulate(np.where(new_RT, np.arange(code_RT.shape[1]), 0), axis=1)
    place_RT = np.empty_like(order_RT)
    np.put_along_axis(place_RT, order_RT, np.take_along_axis(order_RT, start_RT, axis=1), axis=1)
    return np.where(code_RT < 0, -1, place_RT)
