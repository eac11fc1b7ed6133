"""What some graded answers of other questions do for a trained confidence, in and out of domain.

STUDY is a finished study with out-of-domain tests (`recipes/closedbook.toml`). Of each test set, a
random half gives the graded answers, the other half is rated; 100 splits per run. Seed 0 is left
out: the spreads of `calibration.LogOdds` were chosen on it.

    python bench/recalibration.py runs/closedbook
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from grace.calibration import LogOdds
from grace.metrics import brier, ece
from grace.pipeline import load_run_settings
from grace.store import RunDir, Split, runs_in

ANSWERS = (0, 25, 50, 100, 200, 400)
SPLITS = 100


def tests(run: Path) -> Iterator[tuple[str, Split]]:
    """Yield the task and the tuned model's answers of each of a run's test sets."""
    settings, directory = load_run_settings(run), RunDir(run)
    yield settings.data.task, directory.split("test").tuned
    for task in settings.report.transfer:
        yield task, directory.split(f"transfer/{task}").tuned


def rated(split: Split) -> tuple[Any, Any]:
    """Return confidence and grade of the answers that have a confidence."""
    pairs = [
        (response.confidence, grade.correct)
        for response, grade in zip(split.responses.read(), split.grades.read(), strict=True)
        if response.confidence is not None
    ]
    confidence_N, correct_N = map(np.array, zip(*pairs, strict=True))
    return confidence_N, correct_N


def measure(confidence_N: Any, correct_N: Any, answers: int) -> Any:
    """Return ECE and Brier score of each split's other half, in percent, (SPLITS, 2)."""
    found = []
    for number in range(SPLITS):
        order_N = np.random.default_rng(number).permutation(len(confidence_N))
        known, rest = order_N[:answers], order_N[len(order_N) // 2 :]
        c_N = confidence_N[rest]
        if answers:
            c_N = LogOdds.fit(confidence_N[known], correct_N[known]).transform(c_N)
        found.append((ece(c_N, correct_N[rest]), brier(c_N, correct_N[rest])))
    return 100 * np.array(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("study", type=Path)
    parser.add_argument("--variant", default="grace", help="name of the runs' folder")
    arguments = parser.parse_args()
    runs = [run for run in runs_in(arguments.study) if run.name == arguments.variant]
    found: dict[tuple[str, str, int], list[Any]] = {}
    for run in runs:
        settings = load_run_settings(run)
        if settings.seed == 0:
            continue
        for task, split in tests(run):
            values = rated(split)
            for answers in ANSWERS:
                key = (settings.data.task, task, answers)
                found.setdefault(key, []).append(measure(*values, answers))
    for (trained, tested, answers), parts in found.items():
        mean, spread = np.mean(parts, axis=(0, 1)), np.std(parts, axis=(0, 1))
        print(
            f"{trained} -> {tested}, {answers} answers, {len(parts)} seeds: "
            f"ECE {mean[0]:.1f} (sd {spread[0]:.1f}), Brier {mean[1]:.1f} (sd {spread[1]:.1f})"
        )


if __name__ == "__main__":
    main()
