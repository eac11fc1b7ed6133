"""What every process of `torchrun` does in a test: train a tiny model, and note what it saw."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path

import tiny_training
import torch

if __name__ == "__main__":
    torch.set_num_threads(1)
    folder, options = Path(sys.argv[1]), json.loads(sys.argv[2])
    rows = tiny_training.make_examples(16, seed=1)
    validation = [dataclasses.replace(row, target=float(row.target > 0.5)) for row in rows]
    seen: list[dict[str, float]] = []
    tiny_training.train_in(
        folder,
        options.pop("name"),
        tiny_training.make_examples(),
        validation,
        on_step=lambda step, total, values: seen.append(values),
        **options,
    )
    rank = os.environ.get("RANK", "0")
    (folder / f"seen-{rank}.json").write_text(json.dumps(seen))
