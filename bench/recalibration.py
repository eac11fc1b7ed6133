"""The gain of recalibrating a trained confidence with graded answers, in and out of domain.

STUDY is a finished study with out-of-domain tests (`recipes/closedbook.toml`). A random half of
each test set provides the graded answers, the other half is rated; 100 splits per run. Each line is
ECE / Brier score / AUROC in percent. Seed 0 is left out, because the spreads of
`grace.model.recalibrating` were chosen on it.

    python bench/recalibration.py runs/closedbook
"""

from __future__ import annotations

import argparse
import itertools
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from grace.calibration import LogOdds, Platt
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


class Rated(NamedTuple):
    """Answers with a confidence: the parts of its log-odds (2, N), the likelihood, the grades."""

    parts_PN: Any
    likelihood_N: Any
    correct_N: Any


def rated(run: Path, split: Split) -> Rated:
    """Return the answers of a test set that have a confidence."""
    rows = [
        (response, grade.correct)
        for response, grade in zip(split.responses.read(), split.grades.read(), strict=True)
        if response.confidence is not None
    ]
    logprobs = [(*response.logprobs, response.end_logprob) for response, _ in rows]
    evidence = Evidence.in_card(read_card(RunDir(run).adapter))
    parts_PN = parts(evidence, [response.confidence for response, _ in rows], logprobs)
    likelihood_N = np.exp([np.mean(one) for one in logprobs])
    return Rated(parts_PN, likelihood_N, np.array([correct for _, correct in rows]))


def measure(answers: Rated, known: Any, rest: Any) -> dict[str, Any]:
    """Return the `METRICS` of the answers `rest` for each method, fitted to the answers `known`."""
    parts_PN, likelihood_N, correct_N = answers
    if len(known):
        made = LogOdds.fit(parts_PN[:, known], correct_N[known], PART_SPREADS)
        platt = Platt.fit(likelihood_N[known], correct_N[known])
        found = {"recalibrated": made.transform(parts_PN[:, rest])}
        found["Platt on these answers"] = platt.transform(likelihood_N[rest])
    else:
        found = {"as it is": LogOdds((1.0, 1.0), 0.0).transform(parts_PN[:, rest])}
    return {
        name: [100 * metric(c_N, correct_N[rest]) for metric in METRICS]
        for name, c_N in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("study", type=Path)
    arguments = parser.parse_args()
    found = defaultdict(list)
    for run in runs_in(arguments.study):
        settings = load_run_settings(run)
        if settings.seed == 0:
            continue
        for task, split in tests(run):
            answers = rated(run, split)
            for count, number in itertools.product(ANSWERS, range(SPLITS)):
                order_N = np.random.default_rng(number).permutation(len(answers.correct_N))
                known, rest = order_N[:count], order_N[len(order_N) // 2 :]
                for name, values in measure(answers, known, rest).items():
                    found[settings.data.task, task, count, name].append(values)
    for (trained, tested, count, name), values in found.items():
        told = " / ".join(f"{value:.1f}" for value in np.mean(values, axis=0))
        print(f"{trained} -> {tested}, {count} answers, {name}: {told}")


if __name__ == "__main__":
    main()
