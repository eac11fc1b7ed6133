"""Progress of long work: a bar in a terminal, else plain lines now and then."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from grace.errors import ConfigError

LINE_EVERY_S = 15.0
TOLD = 0.05  # the part of the work after which its rate is told; the first answers come late
LEVEL = "GRACE_LOG"  # environment variable: debug, info, warning or error
LEVELS = ("debug", "info", "warning", "error")

log = logging.getLogger("grace")
log.setLevel(named.upper() if (named := os.environ.get(LEVEL, "")) in LEVELS else logging.INFO)


def set_level(name: str) -> None:
    """Set the log level of this process and of those that it starts."""
    if name not in LEVELS:
        raise ConfigError(f"log level {name!r} is unknown; use {', '.join(LEVELS)}")
    os.environ[LEVEL] = name
    log.setLevel(name.upper())
    if name == "debug":
        logging.basicConfig(level=logging.DEBUG)


def say(message: str) -> None:
    """Print a message to standard error, at log level info."""
    if log.isEnabledFor(logging.INFO):
        print(message, file=sys.stderr, flush=True)


class Advance(Protocol):
    """Reports that work is done."""

    def __call__(self, count: int, note: str = "") -> None:
        """Add `count` units; the note is shown beside the rate."""


@contextmanager
def progress(label: str, total: int, *, done: int = 0, unit: str = "") -> Iterator[Advance]:
    """Show the progress of `total` units on standard error; yield a function that adds to it."""
    if 0 < done < total:
        say(f"{label}: going on after {done}/{total} {unit}")
    if total == 0 or not log.isEnabledFor(logging.INFO):
        yield lambda count, note="": None
    elif sys.stderr.isatty():
        with _bar(label, total, done, unit) as advance:
            yield advance
    else:
        yield _lines(label, total, done, unit)


@contextmanager
def _bar(label: str, total: int, done: int, unit: str) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description:<32}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f} " + unit),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    start = time.monotonic()
    with Progress(*columns, console=Console(stderr=True)) as bars:
        task = bars.add_task(label, total=total, completed=done, rate="")

        def advance(count: int, note: str = "") -> None:
            bars.advance(task, count)
            elapsed = time.monotonic() - start
            rate = (bars.tasks[0].completed - done) / elapsed if elapsed > 0 else 0.0
            bars.update(task, rate=f"{rate:.1f}/s {note}".rstrip())

        yield advance


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _lines(label: str, total: int, done: int, unit: str) -> Advance:
    start = last = time.monotonic()
    reached = done

    def advance(count: int, note: str = "") -> None:
        nonlocal reached, last
        reached += count
        now = time.monotonic()
        if now - last >= LINE_EVERY_S or (reached >= total and now - start >= 2):
            last = now
            rate = (reached - done) / (now - start)
            told = [f"{label}: {reached}/{total} {unit}"]
            if rate and reached - done >= TOLD * (total - done):
                told += [f"{rate:.1f}/s", f"{_time((total - reached) / rate)} left"]
            print(", ".join([*told, *filter(None, [note])]), file=sys.stderr, flush=True)

    return advance
