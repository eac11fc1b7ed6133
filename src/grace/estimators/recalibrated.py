"""Calibration maps after an estimator (`NAME+platt`) or a score, fitted on validation answers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast, get_args

import numpy as np

from grace import plugins
from grace.calibration import Isotonic, Platt, Temperature
from grace.config import from_dict
from grace.engines import Engine
from grace.errors import ConfigError, DataError
from grace.estimators import Answers, Estimator, Fitted, Samples, Splits, Values, rated_model

MAPS: Mapping[str, Any] = {"platt": Platt, "isotonic": Isotonic, "temperature": Temperature}


@dataclass(frozen=True, slots=True)
class RecalibratedEstimator:
    """An estimator with a calibration map after it, fitted on validation answers."""

    inner: Estimator
    how: str

    def __getattr__(self, name: str) -> Any:
        """Return what the inner estimator says of itself: `answers`, `asks`, `draws`, `check`."""
        return getattr(self.inner, name)

    def fit(self, splits: Splits, engine: Engine, seed: int) -> Fitted:
        """Fit the inner estimator, then the map."""
        inner = self.inner.fit(splits, engine, seed)
        return _after(inner, MAPS[self.how].fit, splits.validation, f"{self.how} recalibration")


def recalibrate(estimator: Estimator, how: str) -> Estimator:
    """Put a map of `MAPS` after an estimator."""
    if how not in MAPS:
        raise ConfigError(f"unknown recalibration {how!r}; choose from {', '.join(MAPS)}")
    return cast(Estimator, RecalibratedEstimator(estimator, how))


def logistic(score: Callable[[Samples], Values], splits: Splits) -> Fitted:
    """Fit sigmoid(a * score + b) of any score on validation answers, by log loss."""
    fit = functools.partial(Platt.fit, loss="log")
    return _after(Fitted(score), fit, splits.validation, "logistic regression")


def _after(inner: Fitted, fit: Callable[[Any, Any], Any], validation: Samples, name: str) -> Fitted:
    """Fit a map on the validation answers that have a value, and put it after `inner`."""
    rated = [
        (value, correct)
        for value, correct in zip(inner.rate(validation), validation.correct, strict=True)
        if value is not None
    ]
    if not rated:
        raise DataError(
            f"{name} has nothing to fit on: no validation answer has a value "
            "(all were cut at sample.max_new_tokens, or no reply could be read); raise that, or "
            "leave it out of report.estimators"
        )
    values, labels = (np.array(column) for column in zip(*rated, strict=True))
    scaler = fit(values, labels)

    def rate(samples: Samples) -> Values:
        values = inner.rate(samples)
        return [None if v is None else float(scaler.transform(np.array([v]))[0]) for v in values]

    parameters = sum(np.size(getattr(scaler, field)) for field in scaler.__slots__)
    return Fitted(rate, inner.trained_parameters + parameters)


# --- making an estimator by its name


def load_estimator(name: str, options: Mapping[str, Any] | None = None) -> Estimator:
    """Make an estimator by name, with the recalibration that the name may end in (`NAME+platt`)."""
    plain, plus, how = name.partition("+")
    kind = plugins.load_class("grace.estimators", plain, "fit")
    estimator: Any = from_dict(kind, options or {}, where=f"estimators.{plain}")
    if rated_model(estimator) not in get_args(Answers):
        raise ConfigError(
            f"{plain!r} rates answers of {estimator.answers!r}, expected answers = "
            + " or ".join(map(repr, get_args(Answers)))
        )
    return recalibrate(estimator, how) if plus else cast(Estimator, estimator)
