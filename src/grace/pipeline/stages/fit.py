"""Stage `fit`: the run's method fits or trains the confidence, and writes the adapter."""

from __future__ import annotations

from grace.pipeline.context import Context
from grace.pipeline.stages import grace, paper
from grace.store import RunDir

METHODS = {"grace": grace.fit_run, "paper": paper.fit_run}


def fit(context: Context) -> None:
    """Fit the confidence with the method of the run."""
    METHODS[context.settings.method](context)


def fit_seconds(directory: RunDir) -> float | None:
    """Return the seconds of fitting or training, None if they are not recorded."""
    found = [directory.seconds_in(unit) for unit in (grace.FIT, paper.STEPS)]
    recorded = [seconds for seconds in found if seconds is not None]
    return sum(recorded) if recorded else None
