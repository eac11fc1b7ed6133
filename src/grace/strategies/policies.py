"""Policies by name: a strategy together with the estimator whose confidences it reads."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from grace import plugins
from grace.config import from_dict, key_values
from grace.errors import ConfigError
from grace.strategies.deciding import Strategy

POLICIES = (
    "sc",
    "asc",
    "asc,rule=beta",
    "esc",
    "grace-sc",
    "grace-es",
    "p_true-sc",
    "p_true-es",
    "verbal-sc",
    "verbal-es",
    "grace-cisc",
    "grace-best",
    "grace-vote",
)
"""What `grace.scaling.replay` compares by default."""

OWN = "grace"  # the default estimator: a live vote carries its confidences


class Policy(NamedTuple):
    """A strategy, and the estimator whose confidences it reads (None if it reads none)."""

    name: str
    strategy: Strategy
    estimator: str | None


def policy(name: str, **settings: Any) -> Policy:
    """Make the policy that a name stands for.

    A name is a strategy (`sc`, `asc`, `esc`, `es`, ...: the files of this folder, or `module:NAME`)
    or ESTIMATOR-STRATEGY, where `-sc` is the weighted vote: `grace-es`, `p_true-sc`. Settings may
    follow: `asc,rule=beta`. A strategy that reads confidences reads those of `grace` unless an
    estimator is named. Case does not matter.
    """
    plain, *pairs = name.split(",")
    plain = plain if ":" in plain else plain.lower()
    estimator, _, rule = plain.rpartition("-")
    if estimator:
        rule = "weighted" if rule == "sc" else rule
    kind = plugins.load_class("grace.strategies", rule, "stops", "chooses")
    chosen = key_values(pairs, "strategy setting") | settings
    strategy: Any = from_dict(kind, chosen, f"strategy {plain}")
    reads = getattr(kind, "reads_confidence", True)
    if estimator and not reads:
        raise ConfigError(
            f"strategy {rule!r} counts answers and reads no confidences; "
            f"leave {estimator!r} out of the name"
        )
    estimator = estimator or OWN
    shown = f"{estimator}-{'sc' if rule == 'weighted' else rule}" if reads else rule
    return Policy(shown + _changed(strategy), strategy, estimator if reads else None)


def load(name: str, **settings: Any) -> Strategy:
    """Make the strategy that a name stands for, for live votes with confidences of `grace`."""
    full, strategy, estimator = policy(name, **settings)
    if estimator not in (OWN, None):
        raise ConfigError(
            f"strategy {name!r} needs the confidences of {estimator!r}, which a live answer "
            f"lacks; use {full.replace(estimator, OWN, 1)!r}, or replay a finished run with "
            "`grace scale`"
        )
    return strategy


def _changed(strategy: Any) -> str:
    """Write the settings that differ from their defaults as they appear in a name."""
    shown = [f for f in dataclasses.fields(strategy) if f.repr]  # what is fitted is not in a name
    values = [(f.name, getattr(strategy, f.name), f.default) for f in shown]
    return "".join(f",{name}={value}" for name, value, default in values if value != default)
