"""The start of `grace --help`, the time of a bootstrap of every metric, and the installed size.

The times are ratios within one run: `--help` against a bare Python, the bootstrap against its
resamples evaluated one at a time. The size is that of all packages but pip; `--python` names
another environment to measure (`make light`).

    OMP_NUM_THREADS=1 python bench/light.py
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable

import numpy as np
from timing import in_turns

from grace.metrics import bootstrap, evaluate

# The bytes of all packages, pip and what it was installed with left out.
INSTALLED = """
import pathlib, sysconfig
folder = pathlib.Path(sysconfig.get_path("purelib"))
pip = ("pip", "setuptools", "pkg_resources", "_distutils_hack")
rest = [entry for entry in folder.iterdir() if not entry.name.startswith(pip)]
files = [f for entry in rest for f in (entry.rglob("*") if entry.is_dir() else [entry])]
print(sum(file.stat().st_size for file in files if file.is_file()))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--resamples", type=int, default=1000)
    parser.add_argument("--python", default=sys.executable, help="whose start is timed")
    arguments = parser.parse_args()
    python = arguments.python
    help_command = "from grace.cli import main; import sys; sys.argv[1:] = ['--help']; main()"
    import_s, help_s, bare_s = _medians(
        arguments.turns,
        lambda: _run(python, "import grace"),
        lambda: _run(python, help_command),
        lambda: _run(python, "pass"),
    )
    rng = np.random.default_rng(0)
    confidence = rng.beta(2, 1, 1000)
    correct = rng.random(1000) < confidence
    blocks_s, single_s = _medians(
        2,
        lambda: bootstrap(confidence, correct, resamples=arguments.resamples),
        lambda: _one_at_a_time(confidence, correct, arguments.resamples),
    )
    print(
        json.dumps(
            {
                "installed_mb": round(int(_run(python, INSTALLED)) / 1e6, 1),
                "import_seconds": round(import_s - bare_s, 3),
                "help_seconds": round(help_s, 3),
                "help_over_bare_python": round(help_s / bare_s, 1),
                "bootstrap_seconds": round(blocks_s, 3),
                "one_at_a_time_over_bootstrap": round(single_s / blocks_s, 1),
            }
        )
    )


def _run(python: str, code: str) -> str:
    done = subprocess.run([python, "-c", code], capture_output=True, check=True, text=True)
    return done.stdout


def _medians(turns: int, *sides: Callable[[], object]) -> list[float]:
    """Return the median seconds of each side."""
    taken = in_turns(*sides, rounds=turns, warm=0)
    return [statistics.median(one.clock for one in side) for side in taken]


def _one_at_a_time(confidence: np.ndarray, correct: np.ndarray, resamples: int) -> None:
    rng = np.random.default_rng(0)
    for _ in range(resamples):
        drawn = rng.integers(len(confidence), size=len(confidence))
        evaluate(confidence[drawn], correct[drawn])


if __name__ == "__main__":
    main()
