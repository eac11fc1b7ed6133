"""`grace train`: the training of a run, in several processes."""

from __future__ import annotations

import os

from grace.cli.options import RunPath, examples

TRAIN = examples(
    "grace run runs/qwen --recipe paper/qwen2.5-7b --until fit",
    "torchrun --nproc-per-node 8 --no-python grace train runs/qwen",
    "accelerate launch --no_python grace train runs/qwen",
    "grace run runs/qwen",
)


def train(path: RunPath) -> None:
    """Train the adapter of a run in every process of torchrun or accelerate launch. Resumes."""
    from grace.pipeline.processes import train_together

    train_together(path)
    if os.environ.get("RANK", "0") == "0":
        print(f"{path}: trained; next: grace run {path}")
