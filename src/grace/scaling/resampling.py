"""Means over questions and seeds, with the draws that their intervals are made from.

Shapes: S seeds, D draws (entry 0 is the data themselves), F figures, Q questions of one seed,
U different questions of all seeds.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grace.metrics.resampling import SEEDS_FOR_SPREAD
from grace.strategies.tally import Floats

_BLOCK = 4_000_000  # largest number of entries in one block of resample counts (32 MB)


class Estimate(NamedTuple):
    """A mean over questions and seeds with its 95 % bootstrap interval."""

    value: float
    low: float
    high: float

    @property
    def width(self) -> float:
        """Width of the interval."""
        return self.high - self.low


def estimate(draw_D: Floats) -> Estimate:
    """Return the value and the percentiles of its draws, which may be infinite."""
    low, high = np.quantile(draw_D[1:], [0.025, 0.975], method="inverted_cdf")
    return Estimate(float(draw_D[0]), float(low), float(high))


def ratios(
    questions: Sequence[Sequence[Hashable]],
    tops: Sequence[Floats],
    bottoms: Sequence[Floats],
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> tuple[Floats, Floats]:
    """Return sum(top) / sum(bottom) of each seed, and draws of its mean over the seeds.

    Every draw resamples the questions, a question that several seeds asked once for all of them.
    With at least `SEEDS_FOR_SPREAD` seeds it adds the error of having few, as
    `grace.metrics.over_seeds` does, here drawn for all figures at once (a multivariate Student's t
    around the mean), so that differences and functions of several figures have the right one too.

    Args:
        questions: of each seed its Q question ids.
        tops: of each seed (F, Q) values.
        bottoms: of each seed (Q,) or (F, Q) values; ones make the ratio a mean.
        resamples: D - 1.
        seed: seed of the draws.

    Returns:
        (S, F) values of the seeds and (D, F) draws, nan where a sum of `bottom` is 0.
    """
    place = {
        name: at for at, name in enumerate(dict.fromkeys(n for part in questions for n in part))
    }
    rows = [np.array([place[name] for name in part]) for part in questions]
    parts: list[list[Floats]] = [[] for _ in questions]
    for counts_DU in _resamples(len(place), resamples, seed):
        for found, at, top_FQ, bottom in zip(parts, rows, tops, bottoms, strict=True):
            counts_DQ = counts_DU[:, at].astype(np.float64)
            bottom_FQ = np.atleast_2d(bottom)
            with np.errstate(invalid="ignore", divide="ignore"):
                found.append((counts_DQ @ top_FQ.T) / (counts_DQ @ bottom_FQ.T))
    each_SDF = np.array([np.concatenate(found) for found in parts])
    drawn_DF = _mean(each_SDF)
    value_SF = each_SDF[:, 0]
    if len(value_SF) >= SEEDS_FOR_SPREAD:
        away_SF = np.nan_to_num(value_SF - drawn_DF[0])
        drawn_DF[1:] += _few_seeds(len(value_SF), resamples, seed) @ away_SF
    return value_SF, drawn_DF


def _mean(each_SDF: Floats) -> Floats:
    """Return the mean over the seeds that are defined, nan where none is."""
    known_SDF = ~np.isnan(each_SDF)
    with np.errstate(invalid="ignore"):
        mean: Floats = np.where(known_SDF, each_SDF, 0).sum(axis=0) / known_SDF.sum(axis=0)
    return mean


def _few_seeds(count: int, draws: int, seed: int) -> Floats:
    """Return weights of the seeds' deviations (D, S): t with count - 1 degrees of freedom.

    For any figure, weights @ deviations is distributed as t times its standard error over seeds.
    """
    rng = np.random.default_rng([seed, count])
    normal_DS = rng.standard_normal((draws, count))
    scale_D1 = np.sqrt(rng.chisquare(count - 1, (draws, 1)) / (count - 1))
    weights: Floats = normal_DS / scale_D1 / math.sqrt(count * (count - 1))
    return weights


def _resamples(num: int, resamples: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """Yield how often each question counts, in blocks of rows; the first row is the data."""
    yield np.ones((1, num), dtype=np.int64)
    rng = np.random.default_rng(seed)
    most = max(1, _BLOCK // num)
    for start in range(0, resamples, most):
        size = min(most, resamples - start)
        yield rng.multinomial(num, np.full(num, 1 / num), size=size)
