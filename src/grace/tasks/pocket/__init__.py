"""The tasks of the embedded pocket world: made from its seed, nothing to download."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from grace.config import DataSettings
from grace.records import Question
from grace.tasks.rows import Pools, Row

if TYPE_CHECKING:
    from grace.pocket.world import World


def source(name: str, data: DataSettings) -> Pools:
    """Return the pools of a pocket task; the world is the same for every setting."""
    return Pools(
        train=functools.partial(_rows, name, "train"),
        validation=functools.partial(_rows, name, "validation"),
        test=functools.partial(_rows, name, "test"),
    )


def parse(row: Row) -> Question:
    """Return the question of a closed-book or a multiple-choice row."""
    fields = row.fields
    choices = tuple(map(str, fields.get("choices", ())))
    answers = (fields["answer"],) if choices else tuple(fields["answers"])
    return Question(fields["id"], fields["task"], fields["question"], answers, choices)


def _rows(name: str, split: str) -> list[Row]:
    rows = _world().questions(name, split)
    return [Row(f"{name}:{split}[{n}]", {"task": name, **row}) for n, row in enumerate(rows)]


@functools.cache
def _world() -> World:
    from grace.pocket.world import World

    return World.build()
