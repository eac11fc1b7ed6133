"""Retrain a finished run with other settings and print the validation figures after each epoch.

It uses the run's responses, grades and features, and writes nothing into the run.
Each line of the output is JSON: the changed settings, and per epoch ECE, Brier score and AUROC
on the validation responses (teacher-forced), in percent.

    python bench/ablate.py runs/cb train.loss=log "train.init=mean train.epochs=5"
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from grace.config import RunSettings, override_settings, to_dict
from grace.pipeline import load_run_settings
from grace.pipeline.context import Context
from grace.pipeline.stages.targets import make_run_targets
from grace.pipeline.stages.train import run_evidence, train_on
from grace.store import RunDir


def retrain(run: Path, settings: RunSettings) -> list[dict[str, float]]:
    """Return the rows of the training log that hold validation figures."""
    context = Context(RunDir(run), settings)
    _, made = make_run_targets(context)
    with tempfile.TemporaryDirectory() as folder:
        result = train_on(
            context,
            list(made.targets),
            run_evidence(context),
            output_dir=Path(folder) / "adapter",
            checkpoint_dir=Path(folder) / "checkpoints",
            metadata={},
            save_every=10**9,
        )
    return [row for row in result.log if "eval_brier" in row]


def percent(row: dict[str, float]) -> dict[str, Any]:
    """Return the validation figures of one epoch in percent."""
    names = ("eval_ece", "eval_brier", "eval_auroc")
    values = {name.removeprefix("eval_"): round(100 * row[name], 2) for name in names}
    return {"epoch": row["epoch"], **values, "mean_c": round(row["eval_mean_c"], 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("variants", nargs="+", help="section.key=value, separated by blanks")
    arguments = parser.parse_args()
    for variant in arguments.variants:
        start = time.perf_counter()
        known = to_dict(load_run_settings(arguments.run))
        settings = override_settings(known, variant.split())
        rows = [percent(row) for row in retrain(arguments.run, settings)]
        line = {"run": arguments.run.name, "seed": settings.seed, "variant": variant}
        seconds = round(time.perf_counter() - start)
        print(json.dumps({**line, "epochs": rows, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
