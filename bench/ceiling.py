"""The best that any method could tell of an answer before it is finished.

Continues each test answer from 25, 50 and 75% of its length many times, with the run's sampling
temperature. The share of continuations that end right is P(right | what was written so far) up to
the error of sampling, and no confidence can rank answers better by it than that. Beside it: c along
the way, on the same answers. Writes nothing into the runs, which need `grace.trace=true`,
`method=grace` and sampled test answers.

    python bench/ceiling.py runs/rules/seed-0 runs/rules/seed-1 runs/rules/seed-2 --rollouts 64
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grace.grading import grader_of
from grace.metrics import auroc
from grace.pipeline.context import open_run
from grace.pipeline.stages.answers import sampling_for

SHARES = (0.25, 0.5, 0.75)
Array = NDArray[np.float64]


def measured(path: Path, rollouts: int) -> dict[str, Array]:
    """Return the AUROC of each method at each share of the answer, in percent."""
    context = open_run(path)
    engine: Any = context.engines.base
    samples = context.samples(context.directory.split("test").tuned)
    first = dict[str, int]()  # one answer per question, so that rollouts cover all questions
    for at, response in enumerate(samples.responses):
        if response.finish_reason == "stop":
            first.setdefault(response.question_id, at)
    chosen = list(first.values())
    questions = {one.id: one for one in context.directory.split("test").questions.read()}
    grader = grader_of(context.settings.grade, context.task.grader)
    sampling = dataclasses.replace(sampling_for(context.settings, "test"), num_samples=rollouts)
    right = np.array([samples.correct[i] for i in chosen])
    found: dict[str, list[float]] = {name: [] for name in ("rollouts", "half of them", "c")}
    for share in SHARES:
        prefixes, traced = [], []
        for i in chosen:
            response = samples.responses[i]
            place = int(share * len(response.token_ids))
            prefixes.append(list(response.token_ids[:place]))
            traced.append(response.trace[place])
        prompts = [[*samples.prompts[i], *ids] for i, ids in zip(chosen, prefixes, strict=True)]
        grades = np.zeros((len(chosen), rollouts))
        for n, rows in engine.generate(prompts, sampling, keys=[str(i) for i in chosen]):
            question = questions[samples.responses[chosen[n]].question_id]
            texts = [
                engine.tokenizer.decode([*prefixes[n], *row.token_ids], skip_special_tokens=True)
                for row in rows
            ]
            grades[n] = [grader(text, question) for text in texts]
        found["rollouts"].append(100 * auroc(grades.mean(1), right))
        found["half of them"].append(100 * auroc(grades[:, ::2].mean(1), right))
        found["c"].append(100 * auroc(traced, right))
        print(f"{path}: {share:.0%} done", file=sys.stderr, flush=True)
    return {name: np.array(values) for name, values in found.items()}


def main() -> None:
    """Print a table of means over the runs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--rollouts", type=int, default=64, help="continuations of each prefix")
    arguments = parser.parse_args()
    made = [measured(path, arguments.rollouts) for path in arguments.runs]
    print("| AUROC (%) | " + " | ".join(f"{share:.0%}" for share in SHARES) + " |")
    print("| --- |" + " --- |" * len(SHARES))
    for name in made[0]:
        values = np.array([one[name] for one in made])
        cells = [f"{m:.1f} ± {s:.1f}" for m, s in zip(values.mean(0), values.std(0), strict=True)]
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
