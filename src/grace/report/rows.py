"""The rows of report.json, typed: the same whether they were just computed or read from a file.

`schema.json` says what every field means; fields with a default are missing from older files.
Numbers are fractions, rounded to 6 decimals (so that a file does not depend on the last bit of a
sum), and None where undefined.
"""

from __future__ import annotations

from dataclasses import dataclass

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
        """The key that rows of one group share."""
        return self.task, self.train_task, self.backbone


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRow(Place):
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
        """The key that rows of one part on test-time scaling share."""
        return self.task, self.backbone


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
class ShownExample:
    """An example on the page."""

    kind: str
    question: str
    answer: str
    correct: bool
    confidence: float
    task: str
    accepted: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Along:
    """The confidence in some answers at even shares of them: quartiles, lowest first."""

    n: int
    low: tuple[float, ...]
    median: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRow(Sampled):
    """How the confidence `name` in right and in wrong answers goes while they are written."""

    name: str
    right: Along
    wrong: Along
