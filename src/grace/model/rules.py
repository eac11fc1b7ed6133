"""Which threshold decides: the caller's, the run's with its guarantee, or the strategy's own.

The run's threshold is used only where its guarantee holds: in the same mode, with the budget, the
temperature and the longest answer of its calibration.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal, NamedTuple

from grace import strategies
from grace.config import SampleSettings
from grace.engines import Sampling
from grace.errors import UserInputError
from grace.records import Threshold
from grace.strategies import BUDGET, EarlyStop, Strategy


class Answering(NamedTuple):
    """The threshold of a single answer, and what it guarantees if it is the run's."""

    tau: float | None
    promise: str

    def abstains(self, confidence: float | None) -> bool:
        """Return whether an answer of this confidence falls short."""
        return self.tau is not None and (confidence is None or confidence < self.tau)


class Voting(NamedTuple):
    """The strategy of a vote, and what its threshold guarantees if it is the run's."""

    strategy: Strategy
    promise: str = ""


def drawing(
    settings: SampleSettings, temperature: float, max_new_tokens: int | None, seed: int
) -> Sampling:
    """Return how a response is drawn; without a length, as in the training run.

    Raises:
        UserInputError: an impossible temperature or length.
    """
    longest = settings.longest if max_new_tokens is None else max_new_tokens
    if not 0 <= temperature < math.inf:
        raise UserInputError(f"the temperature is {temperature}; use 0 (greedy) or more")
    if longest < 1:
        raise UserInputError(f"max_new_tokens is {longest}; an answer needs at least 1")
    return Sampling(1, temperature, settings.top_p, longest, seed)


def answering(
    threshold: float | None, chosen: Threshold | None, temperature: float, longest: int | None
) -> Answering:
    """Return the threshold of a single answer.

    Raises:
        UserInputError: the threshold is not a confidence.
    """
    if threshold is not None:
        return Answering(check_threshold(threshold), "")
    found = _in_force(chosen, "answer", 1, temperature, longest)
    return Answering(found.tau, found.promise) if found else Answering(None, "")


def voting(
    strategy: Strategy | str | None,
    threshold: float | None,
    chosen: Threshold | None,
    budget: int,
    temperature: float,
    longest: int | None,
) -> Voting:
    """Return the strategy of a vote with its threshold.

    Raises:
        UserInputError: the threshold is not a confidence, or the strategy has none.
        ConfigError: no such strategy.
    """
    made: Any = strategy
    if strategy is None or isinstance(strategy, str):
        made = strategies.load(strategy or "es")
    if threshold is not None:
        if not hasattr(made, "threshold"):
            raise UserInputError(
                f"strategy {strategy!r} takes no threshold, but {threshold} was given; leave it "
                "out, or use the strategy es or asc"
            )
        return Voting(dataclasses.replace(made, threshold=check_threshold(threshold)))
    found = _in_force(chosen, "early-stop", budget, temperature, longest)
    if found is None or found.tau is None or not _is_early_stop(strategy):
        return Voting(made)
    return Voting(EarlyStop(found.tau, found.drop), found.promise)


def usual_budget(chosen: Threshold | None, strategy: Strategy | str | None) -> int:
    """Return the budget of a vote for which none is given."""
    if chosen is None or chosen.tau is None or chosen.mode != "early-stop":
        return BUDGET
    return chosen.budget if _is_early_stop(strategy) else BUDGET


def _is_early_stop(strategy: Strategy | str | None) -> bool:
    """Return whether early stopping is named as it comes, so that it takes the run's threshold."""
    named = strategies.policy(strategy).name if isinstance(strategy, str) else strategy
    return named in (None, "grace-es")


def _in_force(
    chosen: Threshold | None,
    mode: Literal["answer", "early-stop"],
    budget: int,
    temperature: float,
    longest: int | None,
) -> Threshold | None:
    """Return the run's threshold if what it guarantees is what is asked for."""
    if chosen is None or chosen.tau is None or longest is not None:
        return None
    held = (chosen.mode, chosen.budget, chosen.temperature)
    return chosen if held == (mode, budget, temperature) else None


def check_threshold(threshold: float, name: str = "the threshold") -> float:
    """Return a threshold, refusing one that is not a confidence.

    Raises:
        UserInputError: it lies outside [0, 1].
    """
    if not 0 <= threshold <= 1:
        raise UserInputError(f"{name} is {threshold}; give a confidence between 0 and 1, e.g. 0.9")
    return threshold
