"""The frozen rows of report.json, and JSON in and out.

Numbers are fractions, rounded to 6 decimals (so that a file does not depend on the last bit of a
sum), and None where undefined.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
import types
import typing
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np

from grace.metrics import Bar

Interval = tuple[float, float]
Seeds = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Counts of right and of wrong responses in equal-width bins of confidence."""

    right: tuple[int, ...]
    wrong: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Base of the rows about a test task, the task trained on, and a backbone."""

    task: str
    train_task: str
    backbone: str

    @property
    def place(self) -> tuple[str, str, str]:
        """The key that the rows of one group share."""
        return self.task, self.train_task, self.backbone


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """Base of the rows about a task and a backbone, whatever was trained."""

    task: str
    backbone: str

    @property
    def place(self) -> tuple[str, str]:
        """The key that the rows of one group share."""
        return self.task, self.backbone


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRow(Place):
    """One estimator on the test responses of one task, for one seed; a `Summary` is of several."""

    estimator: str
    seed: int | None  # None: of several
    n: int  # responses with a confidence, over which all metrics are
    missing: int  # responses without one
    accuracy_all: float | None  # of both
    seconds_per_answer: float | None
    extra_forward_tokens_per_answer: float | None
    extra_requests_per_answer: float | None
    fit_seconds: float | None
    trained_parameters: float | None
    access: str | None
    accuracy: float | None
    ece: float | None
    brier: float | None
    auroc: float | None
    adaptive_ece: float | None
    smooth_ece: float | None
    aurc: float | None
    wqd: float | None  # None with one response to each question
    interval: dict[str, Interval | None]
    reliability: tuple[Bar, ...]
    histogram: Histogram | None
    p_calibrated: float | None = None  # these five: not in rows that earlier versions exported
    slope: float | None = None
    offset: float | None = None
    brier_calibration: float | None = None
    brier_refinement: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """An estimator minus the leader of a metric, over the responses that both rate."""

    estimator: str
    difference: float | None
    interval: Interval | None
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary(MetricRow):
    """One estimator over its seeds: counts are sums, other numbers means; every dict is by metric.

    `interval` is of the mean over questions and, from three seeds on, over seeds, `spread` the
    standard deviation over the seeds; `p_calibrated` is of the answers of all seeds together, and
    `mark` is explained in `significance.marks`.
    """

    seeds: Seeds
    spread: dict[str, float | None]
    mark: dict[str, str | None]
    to_leader: dict[str, Gap | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(Place):
    """Estimator `a` (GrACE) minus `b` in one metric, over the responses that both rate.

    It is the mean over `seeds`; `seed` is None if there are several.
    """

    a: str
    b: str
    metric: str
    seed: int | None
    seeds: Seeds
    difference: float | None
    interval: Interval | None
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer(Place):
    """One estimator on the same responses: trained on another task minus trained on this one."""

    estimator: str
    metric: str
    in_domain: float | None
    out_of_domain: float | None
    seed: int | None
    seeds: Seeds
    difference: float | None
    interval: Interval | None
    n: int


@dataclass(frozen=True, slots=True)
class TargetRow:
    """One bin of calibration targets: n responses with probe scores in [low, high)."""

    bin: int
    low: float
    high: float
    n: int
    accuracy: float | None
    task: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation(Sampled):
    """A run's own confidence `a` and a simpler one `b` on the same validation answers."""

    seed: int
    a: str
    b: str
    metric: str
    n: int
    a_value: float
    b_value: float
    standard_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RatedAnswer:
    """A response to show as an example on the page; `kind` is why it was picked."""

    kind: str = ""
    question: str
    answer: str
    correct: bool
    confidence: float | None
    task: str
    accepted: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Along:
    """Quartiles of the confidence in n answers, at even steps from their beginning to their end."""

    n: int
    low: tuple[float, ...]
    median: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRow(Sampled):
    """The confidence of estimator `name` along right and along wrong answers."""

    name: str
    right: Along
    wrong: Along


OpenInterval = tuple[float | None, float | None]
"""An end is None where the accuracy is not reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyRow(Sampled):
    """One strategy at one budget of samples: the mean over the seeds, or one seed alone."""

    strategy: str
    answers: str  # whose samples vote: "base", or the name of what was trained
    estimator: str | None
    budget: int
    threshold: float | None
    n: int  # different questions
    accuracy: float
    interval: Interval | None  # of the accuracy
    spread: float | None  # standard deviation of the accuracy over seeds
    mean_samples: float
    samples_interval: Interval | None
    mean_tokens: float
    gain: float | None  # accuracy minus that of `sc` with the same budget, on the same questions
    gain_interval: Interval | None
    gain_own: float | None  # the same to SC over the same, tuned samples
    gain_own_interval: Interval | None
    seeds: Seeds = ()  # not in rows of one seed that earlier versions wrote
    used: tuple[float, ...]  # shares of questions that took 1, 2, ... samples


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualAccuracy(Sampled):
    """The samples that a strategy needs for the accuracy that `reference` has at the budget.

    `saved` is `reference_samples` minus `samples`; both are None where the curve, straight between
    two budgets, does not get there. `reached` is the share of resamples in which it does.
    """

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
    n: int  # questions
    samples: int  # of each question
    accuracy: float
    without_answer: float  # share of samples
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


SCHEMA_VERSION = 3  # 2: summaries had only means; 1: intervals were others (decision 019)
Parsed = TypeVar("Parsed")
Row = TypeVar("Row")
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The content of report.json."""

    schema_version: int
    name: str
    created: str
    grace_version: str
    hardware: str
    rows: tuple[MetricRow, ...]
    summaries: tuple[Summary, ...]
    transfer: tuple[Transfer, ...]
    scaling: tuple[StrategyRow, ...]  # of one seed each
    scaling_joint: tuple[StrategyRow, ...]
    equal_accuracy: tuple[EqualAccuracy, ...]
    pools: tuple[Pooled, ...]
    discrimination: tuple[Discrimination, ...]
    targets: tuple[TargetRow, ...]
    comparisons: tuple[Comparison, ...]
    evaluation: dict[str, float]
    settings: dict[str, str]
    notes: tuple[str, ...]
    validation: tuple[Validation, ...]
    examples: tuple[RatedAnswer, ...]
    traces: tuple[TraceRow, ...]


def group_by(rows: Iterable[Row], key: Callable[[Row], Key]) -> dict[Key, list[Row]]:
    """Group rows by a key, in the order of their appearance."""
    groups: dict[Key, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def mean_of(values: Iterable[Any]) -> float | None:
    """Return the mean of the values that are numbers, None without any."""
    numbers = [value for value in values if isinstance(value, int | float)]
    return statistics.fmean(numbers) if numbers else None


def to_json(value: Any) -> Any:
    """Convert rows, and whatever holds them, to JSON: floats rounded, None for nan and infinity."""
    if dataclasses.is_dataclass(value):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: to_json(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(entry) for entry in value]
    if isinstance(value, float | np.floating):
        return round(float(value), 6) if math.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value


def from_json(row_type: type[Parsed], content: Any) -> Parsed:
    """Build a row from JSON; fields that this version does not have are left out."""
    return cast(Parsed, _parse(row_type, content))


def _parse(kind: Any, value: Any) -> Any:
    """Return a value as a kind of field holds it; one of another type is a `TypeError`."""
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        _check(value, dict)
        fields = _field_types(kind)
        return kind(**{key: _parse(fields[key], value[key]) for key in value if key in fields})
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        return None if value is None else _parse(inner[0], value)
    if kind is float:
        _check(value, int | float | None)  # None stands for nan
    elif isinstance(kind, type) and origin is None:
        _check(value, kind)
    if origin is dict:
        _check(value, dict)
        return {key: _parse(inner[1], value[key]) for key in value}
    if origin is tuple:
        _check(value, list)
        return tuple(_parse(inner[0], entry) for entry in value)
    return value


def _check(value: Any, kind: Any) -> None:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise TypeError(f"{value!r} is no {kind}")


_field_types = functools.cache(typing.get_type_hints)
