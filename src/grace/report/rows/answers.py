"""The rows of report.json about single answers; `schema.json` describes every field.

Numbers are fractions, rounded to 6 decimals (so that a file does not depend on the last bit of a
sum), and None where undefined.
"""

from __future__ import annotations

from dataclasses import dataclass

Interval = tuple[float, float]
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
    """One estimator on the test responses of one task, for one seed."""

    estimator: str
    seed: int
    n: int
    missing: int
    accuracy_all: float | None
    seconds_per_answer: float | None
    extra_forward_tokens_per_answer: float | None
    extra_requests_per_answer: float | None
    fit_seconds: float | None
    trained_parameters: int | None
    access: str | None
    accuracy: float | None
    ece: float | None
    brier: float | None
    auroc: float | None
    adaptive_ece: float | None
    smooth_ece: float | None
    aurc: float | None
    wqd: float | None
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
class Summary(Place):
    """One estimator over its seeds; every dict is by metric."""

    estimator: str
    seeds: Seeds
    mean: dict[str, float | None]
    spread: dict[str, float | None]
    interval: dict[str, Interval | None]
    p_calibrated: float | None
    mark: dict[str, str | None]
    to_leader: dict[str, Gap | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(Place):
    """Estimator `a` (GrACE) minus `b` in one metric, over the responses that both rate."""

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
class TargetValues:
    """The distinct targets of a task's training responses, and how often each occurs."""

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
class ShownExample:
    """An example answer on the page."""

    kind: str
    question: str
    answer: str
    correct: bool
    confidence: float
    task: str
    accepted: tuple[str, ...]
    choices: tuple[str, ...]


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
