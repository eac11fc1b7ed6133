"""The environment of a run: versions, git commit and hardware, for config.json and the report."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

PACKAGES = ("grace-confidence", "torch", "transformers", "peft", "numpy", "scikit-learn")


def describe_environment() -> dict[str, Any]:
    """Return versions, the git commit of the source tree (None outside one) and the hardware."""
    return {
        "versions": {"python": platform.python_version()} | {p: _version(p) for p in PACKAGES},
        "git_commit": _git_commit(),
        "hardware": hardware(),
    }


def hardware() -> str:
    """Return a one-line name of the accelerator or the processor, with its cores."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    threads = torch.get_num_threads()
    used = "1 thread" if threads == 1 else f"{threads} threads"
    return f"{_cpu_name()}, {os.cpu_count()} cores, {used}"


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git_commit() -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
