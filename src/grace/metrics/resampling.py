"""Bootstrap intervals: a resample is a row of counts, so no data are copied or sorted again.

Shapes: N responses, Q questions, R resamples (row 0 is always the data themselves), F figures,
S seeds.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from grace.errors import UserInputError
from grace.metrics.kernels import METRICS, Counted, metric_names
from grace.metrics.samples import Floats, check, check_questions, scatter, sort_by_confidence

_CHUNK = 200_000
"""Largest number of entries in one block of counts, so that it stays in the processor's cache."""

LEVEL = 0.95
"""The level of every interval."""

SEEDS_FOR_SPREAD = 3
"""With fewer seeds their spread cannot be estimated, and intervals are over questions alone."""


class Resamples:
    """Draws of questions with replacement, shared by everything that is evaluated on them.

    So the difference of two results, draw by draw, is a paired bootstrap.
    """

    def __init__(
        self, questions: Sequence[Hashable], *, resamples: int = 1000, seed: int = 0, bins: int = 10
    ) -> None:
        self._code = {question: at for at, question in enumerate(dict.fromkeys(questions))}
        self._bins = bins
        rng = np.random.default_rng(seed)
        num_questions = len(self._code)
        blocks = [np.ones((1, num_questions), dtype=np.uint16)]
        for rows in _blocks(resamples, num_questions):
            drawn = rng.integers(num_questions, size=(len(rows), num_questions))
            counts = scatter(drawn, np.ones(drawn.shape), num_questions)
            blocks.append(counts.astype(np.uint16))
        self._counts_RQ: NDArray[np.uint16] = np.concatenate(blocks)

    def evaluate(
        self,
        confidence: ArrayLike,
        correct: ArrayLike,
        questions: Sequence[Hashable],
        metrics: str | Sequence[str] | None = None,
    ) -> dict[str, Floats]:
        """Return each metric on the data (entry 0) and on every resample; nan where undefined.

        Answers to a single question say nothing of others: all their resamples are undefined.
        """
        data = sort_by_confidence(*check(confidence, correct, self._bins), self._bins)
        code_N = self._codes(questions, len(data.order_N))[data.order_N]
        names = metric_names(metrics)
        value_R = {name: np.full(len(self._counts_RQ), np.nan) for name in names}
        for rows in _blocks(len(self._counts_RQ), len(code_N)):
            counts_RN = self._counts_RQ[rows].take(code_N, axis=1).astype(np.float64)
            drawn = counts_RN.any(axis=1)  # a small part of the questions may be missed
            at = Counted(data, counts_RN if drawn.all() else counts_RN[drawn])
            for name in names if drawn.any() else ():
                value_R[name][rows[drawn]] = METRICS[name](at)
        if not np.ptp(code_N):
            for values in value_R.values():
                values[1:] = np.nan
        return value_R

    def ratios(
        self, questions: Sequence[Hashable], top_FQ: Floats, bottom: Floats | None = None
    ) -> Floats:
        """Return sum(top) / sum(bottom) over the questions of each draw: (R, F).

        Entry 0 is that of the data; nan where the sum of `bottom` is 0.

        Args:
            questions: Q question ids.
            top_FQ: values of each question.
            bottom: (Q,) or (F, Q); by default ones, which make the ratio a mean.
        """
        at_Q = self._codes(questions, top_FQ.shape[1])
        bottom_FQ = np.ones((1, len(at_Q))) if bottom is None else np.atleast_2d(bottom)
        ratios = []
        resampled = (rows + 1 for rows in _blocks(len(self._counts_RQ) - 1, len(at_Q)))
        for rows in (np.arange(1), *resampled):  # the data alone: a sum that no block size changes
            counts_RQ = self._counts_RQ[rows].take(at_Q, axis=1).astype(np.float64)
            with np.errstate(invalid="ignore", divide="ignore"):
                ratios.append((counts_RQ @ top_FQ.T) / (counts_RQ @ bottom_FQ.T))
        return np.concatenate(ratios)

    def _codes(self, questions: Sequence[Hashable], n: int) -> NDArray[np.intp]:
        check_questions(questions, n)
        try:
            return np.array([self._code[question] for question in questions], dtype=np.intp)
        except KeyError as error:
            raise UserInputError(
                f"question {error.args[0]!r} is not one of those that are resampled; "
                "pass all questions to Resamples"
            ) from None


def over_seeds(value_SR: Sequence[Floats], *, seed: int = 0) -> Floats:
    """Return the mean over seeds (entry 0), and draws of it over questions and seeds.

    Every draw resamples the questions, the same ones for all seeds; a seed that has none of them
    is left out of its mean. With at least `SEEDS_FOR_SPREAD` seeds the draws add the error
    of having few of them: Student's t with S - 1 degrees of freedom times the standard error over
    seeds. (Redrawing 5 seeds as well, the textbook two-way bootstrap, understates that error: its
    95% interval covers about 85%.) It is drawn for all figures at once, a multivariate t, so
    that differences and other functions of several figures get the right one too.

    Args:
        value_SR: the draws of each seed, of one figure (R,) or of several (R, F). Seeds for which
            a figure is undefined are left out.
        seed: seed of the draws over seeds.
    """
    defined_SR = np.array([value_R for value_R in value_SR if not np.isnan(value_R[0]).any()])
    if not len(defined_SR):
        return np.full_like(value_SR[0], np.nan)
    drawn_SR = ~np.isnan(defined_SR)
    with np.errstate(invalid="ignore"):
        mean_R: Floats = np.where(drawn_SR, defined_SR, 0).sum(axis=0) / drawn_SR.sum(axis=0)
    if len(defined_SR) >= SEEDS_FOR_SPREAD:
        weights_RS = _few_seeds(len(defined_SR), len(mean_R) - 1, seed)
        mean_R[1:] += weights_RS @ (defined_SR[:, 0] - mean_R[0])
    return mean_R


def _few_seeds(count: int, draws: int, seed: int) -> Floats:
    """Return weights for the seeds' deviations: Student's t with count - 1 degrees of freedom.

    For any figure, weights @ deviations is distributed as t times its standard error over seeds.
    """
    rng = np.random.default_rng([seed, count])
    normal_RS = rng.standard_normal((draws, count))
    scale_R1 = np.sqrt(rng.chisquare(count - 1, (draws, 1)) / (count - 1))
    return normal_RS / scale_R1 / math.sqrt(count * (count - 1))


def interval(metric: str, value_R: Floats, *, difference: bool = False) -> tuple[float, float]:
    """Return the 95% interval of a metric from its draws, within [0, 1] unless of a difference.

    The ends are percentiles, except for ECE and its variants: noise alone raises them, in a
    resample more than in the data, so percentiles can lie wholly above the truth. There the
    percentiles are mirrored at the estimate (the "basic" bootstrap), which removes the rise, and
    widened to contain the estimate. Undefined draws are left out; nan when all are.
    Source: Davison and Hinkley 1997, section 5.2.
    """
    value, drawn_R = float(value_R[0]), value_R[1:]
    drawn_R = drawn_R[~np.isnan(drawn_R)]
    if math.isnan(value) or not len(drawn_R):
        return math.nan, math.nan
    tails = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    low, high = (float(end) for end in np.quantile(drawn_R, tails))
    if metric.endswith("ece"):
        low, high = min(2 * value - high, value), max(2 * value - low, value)
    return (low, high) if difference else (max(low, 0.0), min(high, 1.0))


def bootstrap(
    confidence: ArrayLike,
    correct: ArrayLike,
    metrics: str | Sequence[str] | None = None,
    *,
    resamples: int = 1000,
    seed: int = 0,
    bins: int = 10,
    questions: Sequence[Hashable] | None = None,
) -> dict[str, tuple[float, float]]:
    """Compute 95% bootstrap intervals by metric name; by default of all `METRICS`.

    With `questions` (one per response) whole questions are resampled, as is needed where several
    responses answer one question. See `interval` for the kind of interval.
    """
    confidence_N, correct_N = check(confidence, correct, bins)
    ids = range(len(confidence_N)) if questions is None else questions
    drawn = Resamples(ids, resamples=resamples, seed=seed, bins=bins)
    values = drawn.evaluate(confidence_N, correct_N, ids, metrics)
    return {name: interval(name, value_R) for name, value_R in values.items()}


def _blocks(rows: int, columns: int) -> Iterator[NDArray[np.intp]]:
    step = max(1, _CHUNK // max(1, columns))
    for start in range(0, rows, step):
        yield np.arange(start, min(start + step, rows))
