"""What a model's layers know of its answers: the read-out, fitted to states of several depths.

GrACE reads the last hidden state, or with `grace.layer` the activations inside the MLP of a block.
Here the same convex fit, evidence included, reads several of them, at the same three places: the
last step, the end of the prompt and the mean over the answer. It is fitted to a run's training
answers and rates the run's test answers; nothing is written into the run. `minus_brier` is the last
state's Brier score minus this one, with a 95 % interval.

    python bench/layers.py runs/wiki --depths 0.4 0.5 0.6
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from sizes import Answers, Measured, drawn, ended, kept_rows, rows

from grace.engines import LAST
from grace.engines.local.layers import blocks
from grace.metrics.resampling import Resamples
from grace.pipeline.context import Context, open_run


def answers(context: Context, split: str, layers: list[int]) -> dict[int, Answers]:
    """Return a run's answers with the states of the last layer, and of each of some blocks."""
    found = ended(context, split)
    none = np.zeros(len(found.right))
    read = context.engines.base.states(found.prompts, found.token_ids, layers=layers)
    return {
        layer: Answers(
            *pooled.features, none, none, found.phi, none, none, found.right, found.question
        )
        for layer, pooled in read.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--depths", type=float, nargs="+", default=[0.25, 0.4, 0.5, 0.6, 0.75])
    given = parser.parse_args()
    context = open_run(given.run)
    count = len(blocks(context.engines.base.model))
    layers = sorted({round(depth * count) for depth in given.depths})
    train, test = (answers(context, split, layers) for split in ("train", "test"))
    size = len(train[LAST].right)
    resamples = Resamples(test[LAST].question)
    found = []
    for layer, known in train.items():
        rated, name = test[layer], f"block {layer} of {count}" if layer else "the last state"
        c_N = rows(known)(rated)
        found.append(Measured(name, size, [drawn(resamples, c_N, rated)]))
    for row in kept_rows(found, {"run": given.run.name}):
        print(json.dumps(row))


if __name__ == "__main__":
    main()
