"""The world: deterministic, disjoint, heavy-tailed, partly wrong."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from grace.pocket import QUESTIONS
from grace.store.inputs import read_rows
from tools.pocket import SPLITS, TASKS
from tools.pocket.puzzles import LETTERS, make_sums, make_weights
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


@pytest.mark.parametrize("make", [make_sums, make_weights])
def test_a_careful_writer_reaches_the_answer_and_a_careless_one_often_not(make) -> None:
    rng = random.Random(3)
    puzzles = [make(rng) for _ in range(300)]
    assert all(p.explain(rng, True)[1] == p.answer for p in puzzles)
    right = sum(p.explain(rng, False)[1] == p.answer for p in puzzles)
    assert 120 < right < 240


@pytest.mark.parametrize("make", [make_sums, make_weights])
def test_writers_disagree_and_most_of_them_are_right_more_often_than_one(make) -> None:
    rng = random.Random(4)
    split = one = most = 0
    for _ in range(300):
        puzzle = make(rng)
        letters = Counter(puzzle.explain(rng, False)[1] for _ in range(9))
        split += len(letters) > 1
        one += letters[puzzle.answer] / 9
        most += letters.most_common(1)[0][0] == puzzle.answer
    assert split > 150
    assert most > one + 10
