"""One small training set, and one call that trains a tiny model on it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np


class Trained(NamedTuple):
    log: list[dict[str, float]]
    model: Any
    tokenizer: Any
    cnf: Any
    adapter: Path
    checkpoints: Path


def make_examples(count: int = 24, seed: int = 0) -> list[Any]:
    """Random prompts and responses; the target is high where the last token is even."""
    from grace.methods.paper.examples import Example

    rng = np.random.default_rng(seed)
    made = []
    for number in range(count):
        prompt = tuple(rng.integers(6, 250, rng.integers(3, 14)).tolist())
        response = tuple(rng.integers(6, 250, rng.integers(1, 7)).tolist())
        made.append(Example(f"q{number}#0", prompt, response, 0.9 if response[-1] % 2 else 0.2))
    return made


def make_checks() -> list[Any]:
    """Validation rows, whose targets are grades."""
    rows = make_examples(16, seed=1)
    return [dataclasses.replace(row, target=float(row.target > 0.5)) for row in rows]


def train_in(
    folder: Path, name: str, examples: Any, validation: Any, *, dtype: Any = None, **options: Any
) -> Trained:
    """Train a tiny model into `folder`; options are settings or arguments of `train_adapter`."""
    import tiny_models
    from grace.cnf import add_cnf
    from grace.config import PaperSettings
    from grace.methods.paper.trainer import train_adapter

    known = {field.name for field in dataclasses.fields(PaperSettings)}
    usual = {"learning_rate": 5e-3, "epochs": 2, "rank": 4, "dropout": 0.1, "balance": "none"}
    given: Any = {key: options.pop(key) for key in list(options) if key in known}
    settings = PaperSettings(**{**usual, **given})
    model, tokenizer = tiny_models.model(name), tiny_models.tokenizer()
    model = model if dtype is None else model.to(dtype)
    cnf = add_cnf(model, tokenizer, head=settings.head)
    log = train_adapter(
        model,
        tokenizer,
        cnf,
        examples,
        validation,
        settings,
        seed=options.pop("seed", 0),
        output_dir=folder / "adapter",
        checkpoint_dir=folder / "checkpoints",
        metadata={"base_model": name},
        **options,
    )
    return Trained(log, model, tokenizer, cnf, folder / "adapter", folder / "checkpoints")
