"""The rows of report.json, typed: the same whether they were just computed or read from a file.

`schema.json` says what every field means; fields with a default are missing from older files.
Numbers are fractions, rounded to 6 decimals (so that a file does not depend on the last bit of a
sum), and None where undefined.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Ends = tuple[float, float]
OpenEnds = tuple[float | None, float | None]
Seeds = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar of a reliability diagram."""

    low: float
    high: float
    n: int
    confidence: float | None
    accuracy: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Numbers of right and of wrong responses in equal-width bins of confidence."""

    right: tuple[int, ...]
    wrong: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A test task, a training task and a backbone."""

    task: str
    train_task: str
    backbone: str

    @property
    def place(self) -> tuple[str, str, str]:
        """What rows of one group share."""
        return self.task, self.train_task, self.backbone


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(Place):
    """One estimator on the test responses of one task, for one seed."""

    estimator: str
    seed: int
    n: int
    missing: int = 0
    accuracy_all: float | None = None
    seconds_per_answer: float | None
    extra_forward_tokens_per_answer: float | None
    extra_requests_per_answer: float | None = None
    fit_seconds: float | None = None
    trained_parameters: int | None = None
    access: str | None = None
    accuracy: float | None
    ece: float | None
    brier: float | None
    auroc: float | None
    adaptive_ece: float | None
    smooth_ece: float | None = None
    aurc: float | None
    wqd: float | None = None
    interval: dict[str, Ends | None]
    reliability: tuple[Bar, ...] = ()
    histogram: Histogram | None = None

    def metric(self, name: str) -> float | None:
        """Return a metric by its name."""
        value: float | None = getattr(self, name)
        return value

    def cost(self, name: str) -> float | str | None:
        """Return a cost by its name."""
        value: float | str | None = getattr(self, name)
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """An estimator minus the leader of a metric, over the responses that both rate."""

    estimator: str
    difference: float | None
    interval: Ends | None
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary(Place):
    """One estimator over its seeds, by metric."""

    estimator: str
    seeds: Seeds
    mean: dict[str, float | None]
    spread: dict[str, float | None]
    interval: dict[str, Ends | None]
    mark: dict[str, str | None]
    to_leader: dict[str, Gap | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(Place):
    """Our estimator `a` minus another one, `b`, in one metric, on the responses in both."""

    a: str
    b: str
    metric: str
    seed: int | None
    seeds: Seeds = ()
    difference: float | None
    interval: Ends | None
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer(Place):
    """One estimator on the same responses, trained on another task minus on the tested one."""

    estimator: str
    metric: str
    in_domain: float | None
    out_of_domain: float | None
    seed: int | None = None
    seeds: Seeds
    difference: float | None
    interval: Ends | None
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """A task and the backbone that was sampled."""

    task: str
    backbone: str

    @property
    def place(self) -> tuple[str, str]:
        """What rows of one part on test-time scaling share."""
        return self.task, self.backbone


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy(Sampled):
    """One strategy at one budget of samples."""

    strategy: str
    answers: str = ""
    estimator: str | None
    budget: int
    threshold: float | None
    n: int
    accuracy: float
    interval: Ends | None = None
    spread: float | None = None
    mean_samples: float
    samples_interval: Ends | None = None
    mean_tokens: float
    gain: float | None = None
    gain_interval: Ends | None = None
    gain_own: float | None = None
    gain_own_interval: Ends | None = None
    used: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedStrategy(Strategy):
    """For one seed."""

    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JointStrategy(Strategy):
    """Over the seeds."""

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
    interval: Ends
    reference_samples: float
    samples: float | None
    samples_interval: OpenEnds
    saved: float | None
    saved_interval: OpenEnds
    reached: float


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
    wqd_interval: Ends | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise(Sampled):
    """How often thresholds chosen on random halves of a pool break what they promise."""

    answers: str
    seed: int
    budget: int
    target: float | None
    margin: float | None
    n: int
    delta: float
    splits: int
    promised: float
    broken: float
    broken_on_rest: float
    coverage: float


@dataclass(frozen=True, slots=True)
class TargetRow:
    """One bin of the calibration targets: probe scores in [low, high), their number, accuracy."""

    bin: int
    low: float
    high: float
    n: int
    accuracy: float | None
    task: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetValues:
    """The different targets of a task's training responses, and how often each occurs."""

    task: str
    values: tuple[float, ...]
    counts: tuple[int, ...]


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
class Shown:
    """An example on the page."""

    kind: str
    question: str
    answer: str
    correct: bool
    confidence: float
    task: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What report.json holds; `pools` and `cases` are shown as they came, see schema.json."""

    schema_version: int
    name: str
    created: str
    grace_version: str
    hardware: str
    rows: tuple[Row, ...]
    summaries: tuple[Summary, ...] = ()
    transfer: tuple[Transfer, ...] = ()
    scaling: tuple[SeedStrategy, ...]
    scaling_joint: tuple[JointStrategy, ...] = ()
    equal_accuracy: tuple[EqualAccuracy, ...] = ()
    pools: tuple[dict[str, Any], ...] = ()
    discrimination: tuple[Discrimination, ...] = ()
    promises: tuple[Promise, ...] = ()
    cases: tuple[dict[str, Any], ...] = ()
    targets: tuple[TargetRow, ...]
    target_values: tuple[TargetValues, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    evaluation: dict[str, float] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    validation: tuple[Validation, ...] = ()
    examples: tuple[Shown, ...] = ()
