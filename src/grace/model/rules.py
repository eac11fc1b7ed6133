"""The threshold in use: the caller's, the run's with its guarantee, or the strategy's default.

The run's threshold is used only where its guarantee holds: in the mode, and with the budget, the
temperature and the maximum length of its calibration.
"""

from __future__ import annotations

import dataclasses
import math
from numbers import Integral, Real
from typing import Any, Literal, NamedTuple

from grace import strategies
from grace.config import SampleSettings
from grace.engines import GREEDY_BELOW, Sampling
from grace.errors import UserInputError
from grace.evidence.familiar import HALF
from grace.records import Threshold
from grace.strategies import BUDGET, EarlyStop, FittedVote, Strategy, check_count


class Answering(NamedTuple):
    """The threshold of a single answer, and its guarantee if it is the run's."""

    tau: float | None
    promise: str

    def abstains(self, confidence: float | None) -> bool:
        """Return whether an answer of this confidence is below the threshold."""
        return self.tau is not None and (confidence is None or confidence < self.tau)


class Voting(NamedTuple):
    """The strategy of a vote, and the guarantee of its threshold if it is the run's."""

    strategy: Strategy
    promise: str = ""


def promised(promise: str, familiar: float | None) -> str:
    """Return a guarantee, which no prompt has that is unlike those of the sources."""
    return promise if familiar is None or familiar >= HALF else ""


def drawing(
    settings: SampleSettings, temperature: float, max_new_tokens: int | None, seed: int
) -> Sampling:
    """Return the sampling settings of one response; the training run's where none are given."""
    longest = settings.longest if max_new_tokens is None else max_new_tokens
    if not _is_number(temperature) or not 0 <= temperature < math.inf:
        raise UserInputError(f"the temperature is {temperature!r}; use 0 (greedy) or more")
    check_count(longest, "max_new_tokens")
    if not isinstance(seed, Integral):
        raise UserInputError(f"the seed is {seed!r}; use a whole number")
    apart = settings.open_tokens if max_new_tokens is None else 0
    drawn = (1, float(temperature), settings.top_p, int(longest), int(seed))
    return Sampling(*drawn, open_tokens=apart)


def answering(
    threshold: float | None, chosen: Threshold | None, temperature: float, longest: int | None
) -> Answering:
    """Return the threshold of a single answer: the caller's, or the run's that was `chosen`."""
    if threshold is not None:
        return Answering(check_threshold(threshold), "")
    if chosen and _holds(chosen, "answer", 1, temperature, longest):
        return Answering(chosen.tau, chosen.promise)
    return Answering(None, "")


def voting(
    strategy: Strategy | str | None,
    threshold: float | None,
    chosen: Threshold | None,
    budget: int,
    temperature: float,
    longest: int | None,
    fitted: FittedVote | None = None,
) -> Voting:
    """Return the strategy of a vote, else the usual one, and its threshold; see `answering`."""
    strategy = usual_strategy(chosen, fitted) if strategy is None else strategy
    loaded: Any = strategy
    if isinstance(strategy, str):
        loaded = strategies.load(strategy)
    elif isinstance(strategy, type) or not (
        hasattr(strategy, "stops") and hasattr(strategy, "chooses")
    ):
        raise UserInputError(f"strategy is {strategy!r}; give a strategy or its name, such as 'es'")
    if isinstance(strategy, str) and isinstance(loaded, FittedVote):
        loaded = loaded.learnt(fitted)
    if threshold is not None:
        if not hasattr(loaded, "threshold"):
            raise UserInputError(
                f"strategy {strategy!r} takes no threshold, but {threshold} was given; leave it "
                "out, or use the strategy es or asc"
            )
        return Voting(dataclasses.replace(loaded, threshold=check_threshold(threshold)))
    holds = chosen and _holds(chosen, "early-stop", budget, temperature, longest)
    if chosen and holds and chosen.tau is not None and _is_of(chosen, strategy):
        if chosen.weights:
            return Voting(FittedVote(chosen.tau, 0.0, chosen.weights), chosen.promise)
        return Voting(EarlyStop(chosen.tau), chosen.promise)
    return Voting(loaded)


def usual_strategy(chosen: Threshold | None, fitted: FittedVote | None) -> str:
    """Return the default strategy of a vote: the threshold's, the fitted one, or early stopping."""
    if chosen is not None and chosen.tau is not None and chosen.mode == "early-stop":
        return "grace-vote" if chosen.weights else "es"
    return "es" if fitted is None else "grace-vote"


def usual_budget(chosen: Threshold | None, strategy: Strategy | str | None) -> int:
    """Return the default budget of a vote: that of the run's threshold if it may apply."""
    if chosen is None or chosen.tau is None or chosen.mode != "early-stop":
        return BUDGET
    return chosen.budget if _is_of(chosen, strategy) else BUDGET


def _is_of(chosen: Threshold, strategy: Strategy | str | None) -> bool:
    """Return whether this is the vote of the run's threshold, without settings of its own."""
    if not isinstance(strategy, str):
        return strategy is None
    return "," not in strategy and strategies.policy(strategy).name == chosen.strategy


def _holds(
    chosen: Threshold,
    mode: Literal["answer", "early-stop"],
    budget: int,
    temperature: float,
    longest: int | None,
) -> bool:
    """Return whether the guarantee of the run's threshold covers this use."""
    if chosen.tau is None or longest is not None:
        return False
    is_greedy = max(chosen.temperature, temperature) < GREEDY_BELOW
    same = is_greedy or chosen.temperature == temperature
    return same and (chosen.mode, chosen.budget) == (mode, budget)


def check_threshold(threshold: float, name: str = "the threshold") -> float:
    """Return a threshold after checking that it is in [0, 1]."""
    if not _is_number(threshold) or not 0 <= threshold <= 1:
        raise UserInputError(
            f"{name} is {threshold!r}; give a confidence between 0 and 1, e.g. 0.9"
        )
    return threshold


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
