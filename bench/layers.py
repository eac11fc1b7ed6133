"""What a model's layers know of its answers: the read-out, fitted to states of several depths.

GrACE reads the last layer. Here the same convex fit, evidence included, reads what a block passes
on (`state`) or the activations inside its MLP (`mlp`), at the same three places: the last step, the
end of the prompt and the mean over the answer. It is fitted to a run's training answers and rates
the run's test answers; nothing is written into the run. Differences are from the last layer.

    python bench/layers.py runs/wiki --depths 0.4 0.5 0.6
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sizes import METRICS, Answers, Measured, differences, ended, rows, table
from torch import Tensor, nn

from grace.engines.local.forward import Forward
from grace.metrics.resampling import Resamples
from grace.pipeline.context import Context, open_run


class Watched(Forward):
    """Returns the last hidden states with what passes through some modules beside them."""

    def __init__(self, model: Any, depths: list[float]) -> None:
        super().__init__(model)
        self.seen: dict[str, Tensor] = {}
        lists = [one for one in model.modules() if isinstance(one, nn.ModuleList)]
        blocks = max(lists, key=len)
        for number in sorted({round(depth * len(blocks)) for depth in depths}):
            block = blocks[number - 1]
            size = model.config.get_text_config().hidden_size
            *_, writes = (
                one
                for name, one in block.named_modules()
                if isinstance(one, nn.Linear) and "mlp" in name and one.out_features == size
            )
            block.register_forward_hook(self._keep(f"layer {number} of {len(blocks)}, state"))
            writes.register_forward_hook(self._keep(f"layer {number} of {len(blocks)}, mlp"))

    def _keep(self, name: str) -> Any:
        def keep(_: nn.Module, given: Any, found: Any) -> None:
            found = found[0] if isinstance(found, tuple) else found
            self.seen[name] = given[0] if name.endswith("mlp") else found

        return keep

    def states(self, *arguments: Any) -> Tensor:
        """Return the states of all sources, side by side."""
        last_BLD = super().states(*arguments)
        return torch.cat([last_BLD, *self.seen.values()], dim=-1)


def answers(context: Context, watched: Watched, split: str) -> Iterator[tuple[str, Answers]]:
    """Yield a run's answers with the states of the last layer, then with those of each source."""
    found = ended(context, split)
    none = np.zeros(len(found.right))
    width = found.mean.shape[1] - sum(one.shape[-1] for one in watched.seen.values())
    widths = {"the last layer": width} | {k: v.shape[-1] for k, v in watched.seen.items()}
    start = 0
    for name, size in widths.items():
        at = slice(start, start := start + size)
        states = found.mean[:, at], found.last[:, at], found.first[:, at]
        yield name, Answers(*states, none, found.phi, none, none, found.right, found.question)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--depths", type=float, nargs="+", default=[0.25, 0.4, 0.5, 0.6, 0.75])
    given = parser.parse_args()
    context = open_run(given.run)
    engine = context.engines.base
    engine.forward = watched = Watched(engine.model, given.depths)
    train, test = (dict(answers(context, watched, split)) for split in ("train", "test"))
    size = len(next(iter(train.values())).right)
    resamples = Resamples(next(iter(test.values())).question)
    found = []
    for name, known in train.items():
        rated = test[name]
        value_R = resamples.evaluate(
            rows(known)(rated), rated.right, rated.question.tolist(), METRICS
        )
        found.append(
            Measured(name, size, np.stack([value_R[metric] for metric in METRICS], axis=1))
        )
        print(f"{name}: {found[-1].cell}", flush=True)
    table(["", "ECE / Brier / AUROC"], *([one.method, one.cell] for one in found))
    table(["the last layer minus", "Brier score", "AUROC"], *differences(found, size))


if __name__ == "__main__":
    main()
