"""Names: a policy is a strategy together with the estimator whose confidences it reads."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from grace import plugins
from grace.config import from_dict
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
)
DROP = ",drop=0.1"  # what the names grace-drop and grace-es-drop stand for
"""The policies that are compared unless others are named."""

ALSO = {"majority": "sc", "early-stop": "es", "best-of-n": "best"}  # as texts call them
OWN = "grace"  # whose confidences are read when no estimator is named: what a live vote carries


class Policy(NamedTuple):
    """A strategy, and the estimator whose confidences it reads, None if it reads none."""

    name: str
    strategy: Strategy
    estimator: str | None


def policy(name: str, **settings: Any) -> Policy:
    """Return the policy of a name.

    A name is a strategy (`sc`, `asc`, `esc`, `es`, ...: the files of this folder, or `module:NAME`)
    or ESTIMATOR-STRATEGY, where `-sc` is the weighted vote: `grace-es`, `p_true-sc`. Settings may
    follow: `asc,rule=beta`. Alone, a strategy that reads confidences reads those of `grace`. Case
    does not matter, and `majority`, `early-stop` and `best-of-n` are `sc`, `es` and `best`.
    `grace-drop` and `grace-es-drop` are `grace-sc` and `grace-es` with `drop=0.1`.

    Raises:
        ConfigError: no such strategy, an estimator for a strategy that reads none, or an unknown
            or impossible setting.
    """
    plain, *pairs = name.split(",")
    plain = plain if ":" in plain else ALSO.get(plain.lower(), plain.lower())
    if plain in ("grace-drop", "grace-es-drop"):
        plain = "grace-es" if "es" in plain else "grace-sc"
        pairs = [DROP[1:], *pairs]
    estimator, _, rule = plain.rpartition("-")
    if estimator:
        rule = "weighted" if rule == "sc" else rule
    kind = plugins.load("grace.strategies", rule)
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind) and hasattr(kind, "chooses")):
        raise ConfigError(
            f"{rule!r} is no strategy: it must be a dataclass with stops() and chooses()"
        )
    strategy: Any = from_dict(kind, dict(map(_setting, pairs)) | settings, f"strategy {plain}")
    reads = getattr(kind, "reads_confidence", True)
    if estimator and not reads:
        raise ConfigError(
            f"strategy {rule!r} counts answers and reads no confidences; "
            f"leave {estimator!r} out of its name"
        )
    estimator = estimator or OWN
    shown = f"{estimator}-{'sc' if rule == 'weighted' else rule}" if reads else rule
    return Policy(shown + _changed(strategy), strategy, estimator if reads else None)


def load(name: str, **settings: Any) -> Strategy:
    """Return a strategy for live votes, which carry the confidences of `grace` alone.

    Raises:
        ConfigError: as for `policy`, or another estimator's confidences would be needed.
    """
    made = policy(name, **settings)
    if made.estimator not in (OWN, None):
        raise ConfigError(
            f"strategy {name!r} needs the confidences of {made.estimator!r}, which a live answer "
            f"lacks; use {name.replace(made.estimator, OWN, 1)!r}, or replay a finished run with "
            "`grace scale`"
        )
    return made.strategy


def _setting(pair: str) -> tuple[str, Any]:
    key, equals, text = pair.partition("=")
    if not equals:
        raise ConfigError(f"strategy setting {pair!r} has no value; write NAME=VALUE")
    for number in (int, float):
        try:
            return key.strip(), number(text)
        except ValueError:
            continue
    return key.strip(), text.strip()


def _changed(strategy: Any) -> str:
    """Return the settings that differ from their defaults, as they are written in a name."""
    values = [(f.name, getattr(strategy, f.name), f.default) for f in dataclasses.fields(strategy)]
    return "".join(f",{name}={value}" for name, value, default in values if value != default)
