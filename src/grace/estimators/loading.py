"""Make an estimator by its name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, cast, get_args

from grace import plugins
from grace.config import from_dict
from grace.errors import ConfigError
from grace.estimators import Answers, Estimator
from grace.estimators.recalibrated import recalibrate


def load_estimator(name: str, options: Mapping[str, Any] | None = None) -> Estimator:
    """Make an estimator by name, with the recalibration that the name may end in (`NAME+platt`)."""
    plain, plus, how = name.partition("+")
    kind = plugins.load("grace.estimators", plain)
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind) and hasattr(kind, "fit")):
        raise ConfigError(f"{plain!r} is not an estimator: it must be a dataclass with fit()")
    estimator: Any = from_dict(kind, options or {}, where=f"estimators.{plain}")
    if getattr(estimator, "answers", None) not in get_args(Answers):
        raise ConfigError(
            f"{plain!r} does not say whose answers it rates: add answers: ClassVar[Answers] = "
            '"base" (or "tuned")'
        )
    return recalibrate(estimator, how) if plus else cast(Estimator, estimator)
