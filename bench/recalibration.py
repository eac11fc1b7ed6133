"""What some graded answers of other questions do for a trained confidence, in and out of domain.

STUDY is a finished study with out-of-domain tests (`recipes/closedbook.toml`). Of each test set, a
random half gives the graded answers, the other half is rated; 100 splits per run. Seed 0 is left
out: the spreads of `grace.model.recalibrating` were chosen on it.

    python bench/recalibration.py runs/closedbook
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from grace.calibration import LogOdds
from grace.evidence import Evidence
from grace.metrics import auroc, brier, ece
from grace.model.recalibrating import PART_SPREADS, parts
from grace.pipeline import load_run_settings
from grace.store import RunDir, Split, read_card, runs_in

ANSWERS = (0, 25, 50, 100, 200, 400)
SPLITS = 100
METRICS = (ece, brier, auroc)


def tests(run: Path) -> Iterator[tuple[str, Split]]:
    """Yield the task and the tuned model's answers of each of a run's test sets."""
    settings, directory = load_run_settings(run), RunDir(run)
    yield settings.data.task, directory.split("test").tuned
    for task in settings.report.transfer:
        yield task, directory.split(f"transfer/{task}").tuned


def rated(run: Path, split: Split) -> tuple[Any, Any]:
    """Return the parts of the log-odds (2, N) and the grades of the answers with a confidence."""
    rows = [
        (response, grade.correct)
        for response, grade in zip(split.responses.read(), split.grades.read(), strict=True)
        if response.confidence is not None
    ]
    logprobs = [(*response.logprobs, response.end_logprob) for response, _ in rows]
    evidence = Evidence.in_card(read_card(RunDir(run).adapter))
    parts_PN = parts(evidence, [response.confidence for response, _ in rows], logprobs)
    return parts_PN, np.array([correct for _, correct in rows])


def measure(parts_PN: Any, correct_N: Any, answers: int) -> Any:
    """Return the `METRICS` of each split's other half, in percent, (SPLITS, 3)."""
    found = []
    for number in range(SPLITS):
        order_N = np.random.default_rng(number).permutation(len(correct_N))
        known, rest = order_N[:answers], order_N[len(order_N) // 2 :]
        made = LogOdds((1.0,) * len(parts_PN), 0.0)
        if answers:
            made = LogOdds.fit(parts_PN[:, known], correct_N[known], PART_SPREADS)
        c_N = made.transform(parts_PN[:, rest])
        found.append([metric(c_N, correct_N[rest]) for metric in METRICS])
    return 100 * np.array(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("study", type=Path)
    arguments = parser.parse_args()
    found: dict[tuple[str, str, int], list[Any]] = {}
    for run in runs_in(arguments.study):
        settings = load_run_settings(run)
        if settings.seed == 0:
            continue
        for task, split in tests(run):
            values = rated(run, split)
            for answers in ANSWERS:
                key = (settings.data.task, task, answers)
                found.setdefault(key, []).append(measure(*values, answers))
    for (trained, tested, answers), measured in found.items():
        mean, spread = np.mean(measured, axis=(0, 1)), np.std(measured, axis=(0, 1))
        print(
            f"{trained} -> {tested}, {answers} answers, {len(measured)} seeds: "
            + ", ".join(
                f"{metric.__name__} {value:.1f} (sd {sd:.1f})"
                for metric, value, sd in zip(METRICS, mean, spread, strict=True)
            )
        )


if __name__ == "__main__":
    main()
