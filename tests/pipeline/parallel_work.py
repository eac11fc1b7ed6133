"""Work that is given to other processes, which import it by name."""

from __future__ import annotations

import os
import time
from pathlib import Path


def write_threads(file: Path) -> None:
    """Say how many threads this process may use."""
    file.write_text(os.environ["OMP_NUM_THREADS"])


def write_pid_and_stay(file: Path) -> None:
    """Say which process this is, then stay until killed."""
    file.write_text(str(os.getpid()))
    time.sleep(600)


def fail_beside(file: Path) -> None:
    """Fail once the other process is at work, which stays until killed."""
    if file.name != "fails":
        write_pid_and_stay(file)
    while not ((other := file.parent / "stays").exists() and other.read_text()):
        time.sleep(0.01)
    raise ValueError("no answer fits")


def end(file: Path) -> None:
    """End this process at once, as a lack of memory may."""
    os._exit(1)
