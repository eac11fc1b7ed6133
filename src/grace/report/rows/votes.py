"""The rows of report.json about votes over several samples; `schema.json` describes every field."""

from __future__ import annotations

from dataclasses import dataclass

from grace.report.rows.answers import Interval, Sampled, Seeds

OpenInterval = tuple[float | None, float | None]
"""An end is None where the accuracy is not reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyRow(Sampled):
    """One strategy at one budget of samples."""

    strategy: str
    answers: str
    estimator: str | None
    budget: int
    threshold: float | None
    n: int
    accuracy: float
    interval: Interval | None
    spread: float | None
    mean_samples: float
    samples_interval: Interval | None
    mean_tokens: float
    gain: float | None
    gain_interval: Interval | None
    gain_own: float | None
    gain_own_interval: Interval | None
    used: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedStrategy(StrategyRow):
    """A strategy at one budget, for one seed."""

    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JointStrategy(StrategyRow):
    """A strategy at one budget, over all seeds."""

    seeds: Seeds


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualAccuracy(Sampled):
    """The samples that a strategy needs for the accuracy that `reference` has at the budget."""

    strategy: str
    estimator: str | None
    threshold: float | None
    reference: str
    budget: int
    seeds: Seeds
    accuracy: float
    interval: Interval
    reference_samples: float
    samples: float | None
    samples_interval: OpenInterval
    saved: float | None
    saved_interval: OpenInterval
    reached: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledConfidence:
    """One estimator's confidences in the single samples of a pool."""

    estimator: str
    n: int
    accuracy: float | None
    ece: float | None
    brier: float | None
    auroc: float | None
    wqd: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooled(Sampled):
    """The stored samples of one model in one run, each taken by itself."""

    seed: int
    answers: str
    n: int
    samples: int
    accuracy: float
    without_answer: float
    mean_tokens: float
    confidences: tuple[PooledConfidence, ...]
    temperature: float | None = None
    fitted_temperature: float | None = None
    """At which the answers were drawn that the confidence was fitted to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Discrimination(Sampled):
    """One estimator's confidences in the single samples of one model, over the seeds."""

    answers: str
    estimator: str
    seeds: Seeds
    n: int
    accuracy: float | None
    ece: float | None
    brier: float | None
    auroc: float | None
    wqd: float | None
    wqd_interval: Interval | None
