"""The world: deterministic, disjoint, heavy-tailed, partly wrong."""

from __future__ import annotations

import pytest

from grace.pocket import QUESTIONS
from grace.store.inputs import read_rows
from tools.pocket import SPLITS, TASKS
from tools.pocket.puzzles import LETTERS
from tools.pocket.topics import KINDS
from tools.pocket.world import World

CLOSED_BOOK = tuple(KINDS)


@pytest.fixture(scope="module")
def world() -> World:
    return World.build(0)


def test_the_same_seed_makes_the_same_world_and_another_seed_another(world: World) -> None:
    assert World.build(0) == world
    assert World.build(1).facts != world.facts


@pytest.mark.parametrize("task", TASKS)
def test_every_split_has_its_size_and_no_question_is_in_two(world: World, task: str) -> None:
    rows = {split: world.questions(task, split) for split in SPLITS}
    assert {split: len(found) for split, found in rows.items()} == SPLITS
    asked = [(row["question"], *row.get("choices", [])) for found in rows.values() for row in found]
    assert len(set(asked)) == len(asked)
    ids = [row["id"] for found in rows.values() for row in found]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("task", CLOSED_BOOK)
def test_no_entity_is_in_two_splits(world: World, task: str) -> None:
    train, validation, test = ({f.name for f in world.question_facts(task, s)} for s in SPLITS)
    assert not (train & validation) | (train & test) | (validation & test)


@pytest.mark.parametrize("task", TASKS)
def test_rows_have_the_promised_fields(world: World, task: str) -> None:
    expected = (
        {"id", "question", "answers"} if task in KINDS else {"id", "question", "choices", "answer"}
    )
    for row in world.questions(task, "validation"):
        assert set(row) == expected
        if task in KINDS:
            assert row["answers"] and all(row["answers"])
        else:
            assert len(set(row["choices"])) == len(row["choices"]) >= 4
            assert row["answer"] in LETTERS[: len(row["choices"])]


@pytest.mark.parametrize("task", TASKS)
def test_the_questions_in_the_package_are_those_of_the_world(world: World, task: str) -> None:
    for split in SPLITS:
        shipped = [row.fields for row in read_rows(QUESTIONS / task / f"{split}.parquet")]
        assert shipped == [{"task": task, **row} for row in world.questions(task, split)]
