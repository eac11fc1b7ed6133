"""Intervals over questions and seeds, by one bootstrap that all results share.

A resample is a row of counts, so no data are copied or sorted again. The draws of a metric are its
values (R,); those of a calibration error are its signed gaps (R, K), whose sizes add up to it.

Shapes: N responses, Q questions, R resamples (row 0 is always the data themselves), F figures,
S seeds, K gaps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from grace.metrics.kernels import (
    GAPS,
    METRICS,
    Counted,
    Floats,
    check,
    check_questions,
    metric_names,
    scatter,
    sort_by_confidence,
)

_CHUNK = 200_000
"""Largest number of entries in one block of counts, so that it stays in the processor's cache."""

LEVEL = 0.95
"""The level of every interval."""

TAILS = (0.0225, 0.9775)
"""A little wider than 95%: draws of a few hundred answers spread less than repeated studies do."""

ERROR_TAILS = (0.03, 0.98)
"""Of a calibration error, which cannot be below 0: so the lower end is wrong too seldom."""

SEEDS_FOR_SPREAD = 3
"""With fewer seeds their spread cannot be estimated, and intervals are over questions alone."""

KNOWN = 0.5
"""How much of what questions add to the spread over seeds is taken off it; see decision 019."""


class Estimate(NamedTuple):
    """A value with its 95% interval."""

    value: float
    low: float
    high: float

    @property
    def interval(self) -> tuple[float, float]:
        """Both ends."""
        return self.low, self.high

    @property
    def width(self) -> float:
        """The width of the interval."""
        return self.high - self.low

    @property
    def clear(self) -> int:
        """The sign of a difference whose interval excludes 0, else 0."""
        return int(self.low > 0) - int(self.high < 0)


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
        """Return the draws of each metric, (R,) or gaps (R, K); nan where undefined."""
        data = sort_by_confidence(*check(confidence, correct, self._bins), self._bins)
        code_N = self._codes(questions, len(data.order_N))[data.order_N]
        draws: dict[str, Floats] = {}
        for rows in _blocks(len(self._counts_RQ), len(code_N)):
            counts_RN = self._counts_RQ[rows].take(code_N, axis=1).astype(np.float64)
            drawn = counts_RN.any(axis=1)  # a small part of the questions may be missed
            at = Counted(data, counts_RN if drawn.all() else counts_RN[drawn])
            for name in metric_names(metrics) if drawn.any() else ():
                found = (GAPS.get(name) or METRICS[name])(at)
                empty = np.full((len(self._counts_RQ), *found.shape[1:]), np.nan)
                draws.setdefault(name, empty)[rows[drawn]] = found
        if not np.ptp(code_N):
            for found in draws.values():
                found[1:] = np.nan
        return draws

    def ratios(
        self, questions: Sequence[Hashable], top_FQ: Floats, bottom: Floats | None = None
    ) -> Floats:
        """Return sum(top) / sum(bottom) over the questions of each draw: (R, F).

        Entry 0 is that of the data; nan where the sum of `bottom`, (Q,) or (F, Q), is 0. By default
        that is ones, which make the ratio a mean.
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
        return np.array([self._code[question] for question in questions], dtype=np.intp)


def estimate(draws_S: Sequence[Floats], *, seed: int = 0) -> Estimate:
    """Return the mean over seeds from the draws of each; of an ECE with the true one's interval."""
    return estimated(draws_S, seed)[0]


def estimated(draws_S: Sequence[Floats], seed: int) -> tuple[Estimate, float]:
    """Return `estimate`, and of a calibration error the middle of the true ones."""
    if draws_S[0].ndim == 2:
        return _true_error(draws_S, seed)
    value, *ends = percentiles(over_seeds(draws_S, seed=seed))
    return Estimate(value, *(min(max(end, 0.0), 1.0) for end in ends)), math.nan


def difference(
    a_S: Sequence[Floats],
    b_S: Sequence[Floats],
    *,
    seed: int = 0,
    estimated: Callable[[Sequence[Floats], int], tuple[Estimate, float]] = estimated,
) -> Estimate:
    """Return a metric of one side minus that of another over the same seeds and resamples.

    For calibration errors the two intervals are joined as if they were independent: with answers
    in common that is wider than needed, and keeps "clearly better" wrong in less than 2.5%.
    Source: Zou and Donner 2008, "Construction of confidence limits about effect measures".
    """
    pairs = list(zip(a_S, b_S, strict=True))
    if a_S[0].ndim == 1:
        return percentiles(over_seeds([a_R - b_R for a_R, b_R in pairs], seed=seed))
    if all(np.array_equal(a_RK, b_RK, equal_nan=True) for a_RK, b_RK in pairs):
        return Estimate(0.0, 0.0, 0.0)
    (a, a_middle), (b, b_middle) = estimated(a_S, seed), estimated(b_S, seed)
    low = a_middle - b_middle - math.hypot(a_middle - a.low, b.high - b_middle)
    high = a_middle - b_middle + math.hypot(a.high - a_middle, b_middle - b.low)
    return Estimate(a.value - b.value, low, high)


def percentiles(draw_R: Floats) -> Estimate:
    """Return the value (entry 0) and the percentiles of its draws, without undefined ones."""
    drawn_R = draw_R[1:][~np.isnan(draw_R[1:])]
    if math.isnan(draw_R[0]) or not len(drawn_R):
        return Estimate(float(draw_R[0]), math.nan, math.nan)
    finite = np.isfinite(drawn_R).all()  # between two draws of which one is infinite lies neither
    ends = np.quantile(drawn_R, TAILS, method="weibull" if finite else "inverted_cdf")
    return Estimate(float(draw_R[0]), *map(float, ends))


def over_seeds(value_SR: Sequence[Floats] | Floats, *, seed: int = 0) -> Floats:
    """Return the mean over seeds (entry 0), and draws of it over questions and seeds.

    Every draw resamples the questions, the same ones for all seeds; a seed that has none of them
    is left out of its mean. With at least `SEEDS_FOR_SPREAD` seeds a draw adds the error of
    having few of them, as far as questions do not explain it: the spread over seeds beyond what
    resampling the questions makes of it. The whole is Student's t with Satterthwaite's degrees of
    freedom. Seeds for which a figure is undefined are left out.
    """
    defined_SR = np.array([value_R for value_R in value_SR if not np.isnan(value_R[0]).any()])
    if not len(defined_SR):
        return np.full_like(value_SR[0], np.nan)
    with np.errstate(invalid="ignore"):
        mean_R: Floats = _mean(defined_SR)
        if len(defined_SR) >= SEEDS_FOR_SPREAD:
            mean_R[1:] = mean_R[0] + _SeedError(defined_SR, seed).added(mean_R[1:] - mean_R[0])
    return mean_R


class _SeedError:
    """The error of a mean that seeds add to that of questions; draws are the same in every call."""

    def __init__(self, value_SR: Floats, seed: int) -> None:
        seeds, draws = max(len(value_SR), 2), value_SR.shape[1] - 1
        moved_SR = value_SR[:, 1:] - value_SR[:, :1]
        apart_S = value_SR[:, 0] - value_SR[:, 0].mean(axis=0)
        between = (apart_S**2).sum(axis=0) / (seeds - 1)
        within = np.nanmean(np.nansum((moved_SR - _mean(moved_SR)) ** 2, axis=0), axis=0)
        self.variance = np.maximum(0.0, between - KNOWN * within / (seeds - 1)) / seeds
        rng = np.random.default_rng([seed, seeds])
        self._normal_R, self._order_R = rng.standard_normal(draws), rng.permutation(draws)
        self._seeds, self._rng = seeds, rng

    def added(self, moved_R: Floats) -> Floats:
        """Add the error of seeds to what questions move a mean by: (R,) or (R, F)."""
        total = np.nanvar(moved_R, axis=0) + self.variance
        part = np.divide(self.variance, total, out=np.zeros_like(total), where=total > 0)
        freedom = (self._seeds - 1) / np.maximum(part, 1e-4) ** 2
        square_R = np.sort(self._rng.chisquare(freedom, moved_R.shape), axis=0) / freedom
        normal_R = self._normal_R.reshape(-1, *(1,) * (moved_R.ndim - 1))
        added_R: Floats = moved_R + np.sqrt(self.variance) * normal_R
        return np.where(part > 0, added_R / np.sqrt(square_R[self._order_R]), moved_R)


def _mean(value_SR: Floats) -> Floats:
    """Return the mean over the seeds that a draw has."""
    drawn_SR = ~np.isnan(value_SR)
    mean_R: Floats = np.where(drawn_SR, value_SR, 0).sum(axis=0) / drawn_SR.sum(axis=0)
    return mean_R


def _true_error(gap_SRK: Sequence[Floats], seed: int) -> tuple[Estimate, float]:
    """Return a calibration error with the true ones that make it probable, and the middle of them.

    Chance adds to a calibration error, the more the smaller the true one is. So for every true
    error t the draws say how often chance makes an error as large as the one in the data; the
    interval holds the t for which this is within `ERROR_TAILS`. For a smaller t every gap is moved
    towards 0 by the same number of its standard errors, for a larger one away from it.
    """
    defined = [gap_RK for gap_RK in gap_SRK if not np.isnan(gap_RK[0]).any()]
    if not defined:
        return Estimate(math.nan, math.nan, math.nan), math.nan
    size_SR = np.array([np.abs(gap_RK).sum(axis=1) for gap_RK in defined])
    gap_RK = np.concatenate(defined, axis=1) / len(defined)
    value = float(np.abs(gap_RK[0]).sum())
    kept_R = ~np.isnan(gap_RK).any(axis=1)
    moved_RK = (gap_RK[kept_R] - gap_RK[0])[1:]
    if not len(moved_RK):
        return Estimate(value, math.nan, math.nan), math.nan
    error_K, size_K = moved_RK.std(axis=0), np.abs(gap_RK[0])
    most = float((size_K[error_K > 0] / error_K[error_K > 0]).max(initial=0.0))

    def true(share: float, sign_K: Floats) -> float:
        """The true error at which this share of draws is as large as the error in the data."""

        def larger(steps: float) -> float:
            true_K = np.maximum(size_K - steps * error_K, 0)
            drawn_R = np.abs(true_K + sign_K * moved_RK).sum(axis=1)
            if len(defined) >= SEEDS_FOR_SPREAD:
                middle = drawn_R.mean()
                drawn_R = middle + seeds.added(drawn_R - middle)
            return float((drawn_R >= value).mean())

        steps = _crossing(larger, share, most)
        return float(np.maximum(size_K - steps * error_K, 0).sum()) if steps < most else 0.0

    seeds = _SeedError(size_SR[:, kept_R], seed)
    sign_K = np.where(gap_RK[0] < 0, -1.0, 1.0)
    # Chance turned some signs. Gaps that move together make the largest error if all have one.
    high = max(true(ERROR_TAILS[1], sign_K), true(ERROR_TAILS[1], np.ones_like(sign_K)))
    # An error that is small even for chance: no true one is more probable than 0, so none is left.
    least = float(np.sqrt((error_K**2).sum()))
    found = Estimate(value, true(ERROR_TAILS[0], sign_K), min(max(high, least), 1.0))
    return found, true(0.5, sign_K)


def _crossing(larger: Callable[[float], float], share: float, most: float) -> float:
    """Return the number of steps at which a falling share is reached, `most` if it never is."""
    if larger(most) >= share:
        return most
    low, high = -8.0, most
    for _ in range(16):
        middle = (low + high) / 2
        low, high = (middle, high) if larger(middle) >= share else (low, middle)
    return high


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
    """Compute 95% bootstrap intervals by metric name, over whole questions if there are any."""
    confidence_N, correct_N = check(confidence, correct, bins)
    ids = range(len(confidence_N)) if questions is None else questions
    drawn = Resamples(ids, resamples=resamples, seed=seed, bins=bins)
    draws = drawn.evaluate(confidence_N, correct_N, ids, metrics)
    return {name: estimate([found])[1:3] for name, found in draws.items()}


def _blocks(rows: int, columns: int) -> Iterator[NDArray[np.intp]]:
    step = max(1, _CHUNK // max(1, columns))
    for start in range(0, rows, step):
        yield np.arange(start, min(start + step, rows))
