"""A small training set, and a call that trains a tiny model on it, in the folder of a test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_training import Trained, make_checks, make_examples, train_in


@pytest.fixture
def examples() -> list[Any]:
    return make_examples()


@pytest.fixture
def validation() -> list[Any]:
    return make_checks()


@pytest.fixture
def train(examples: list[Any], validation: list[Any], tmp_path: Path) -> Callable[..., Trained]:
    """Train a tiny model: `train("qwen2", epochs=1, on_step=..., folder="a", data=...)`."""

    def run(
        name: str = "llama_untied",
        *,
        folder: str = "run",
        data: Any = None,
        held_out: Any = None,
        **options: Any,
    ) -> Trained:
        rows = examples if data is None else data
        checked = validation if held_out is None else held_out
        return train_in(tmp_path / folder, name, rows, checked, **options)

    return run
