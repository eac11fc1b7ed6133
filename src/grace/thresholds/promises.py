"""What a threshold promises, or that none can."""

from __future__ import annotations

from dataclasses import dataclass

from grace.thresholds.exact import least_points


@dataclass(frozen=True, slots=True)
class AccuracyPromise:
    """At least `target` of the answers given at `tau` are right, except with probability `delta`.

    `tau` is None when no threshold can promise it. `accepted` of `n` calibration questions were
    answered and `right` of those were right, at tau or else at the strictest threshold tested.
    `bound` is the Clopper-Pearson lower bound of the accuracy there, at the level of its test.
    """

    tau: float | None
    target: float
    delta: float
    n: int
    accepted: int
    right: int
    bound: float

    @property
    def coverage(self) -> float:
        """Share of the calibration questions that are answered."""
        return self.accepted / self.n

    @property
    def needed(self) -> int:
        """Fewest answered questions that could promise this, were all of them right."""
        return least_points(self.target, self.delta)

    def __str__(self) -> str:
        seen = f"{self.right} of {self.accepted} right, {self.n} questions"
        promise = f"at least {self.target:.1%} right with probability {1 - self.delta:.0%}"
        if self.tau is not None:
            return (
                f"confidence >= {self.tau:g}: {promise}; answers {self.coverage:.1%} ({seen}, "
                f"bound {self.bound:.1%})"
            )
        if self.n < self.needed:
            return (
                f"no threshold can promise {promise} with {self.n} points: at least {self.needed} "
                "would be needed even if all were right"
            )
        return (
            f"no threshold can promise {promise} with {self.n} points: the strictest tested has "
            f"{seen}, bound {self.bound:.1%}; lower the target, or calibrate on more questions"
        )


@dataclass(frozen=True, slots=True)
class NoWorsePromise:
    """At `tau` accuracy is at most `margin` below the baseline's, except with probability `delta`.

    `tau` is None when no threshold can promise it. Of `n` calibration questions `better` were
    right where the baseline was wrong, and `worse` the other way round, at tau or else at the
    strictest threshold. `bound` is a lower bound of the difference in accuracy, cut off at 0.
    """

    tau: float | None
    margin: float
    delta: float
    n: int
    better: int
    worse: int
    bound: float

    def __str__(self) -> str:
        seen = f"{self.better} better, {self.worse} worse of {self.n} questions"
        below = f"at most {self.margin:.1%} below" if self.margin else "at least"
        promise = f"accuracy {below} the baseline's with probability {1 - self.delta:.0%}"
        if self.tau is not None:
            return f"confidence >= {self.tau:g}: {promise} ({seen})"
        return (
            f"no threshold can promise {promise}: the strictest tested has {seen}; "
            "allow a larger margin, or calibrate on more questions"
        )
