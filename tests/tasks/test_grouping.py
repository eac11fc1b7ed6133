"""Which answers stay together in folds and resamples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tiny_run
from grace.config import DataSettings
from grace.tasks.answered import Answered
from grace.tasks.draw import together
from grace.tasks.jsonl import TASK

CHAT = [
    {"role": "system", "content": "Today is Monday. You talk to Ann."},
    {"role": "user", "content": "Who wrote Emma?"},
    {"role": "assistant", "content": "Jane Austen"},
    {"role": "user", "content": "who wrote middlemarch ?"},
]
ASKED = {"question": "Who wrote Middlemarch?"}


def groups(*rows: dict[str, Any]) -> list[int]:
    return together(Answered("", row).keys for row in rows)


@pytest.mark.parametrize(
    "again",
    [
        {"question": "who wrote  the Middlemarch ?"},
        {"messages": CHAT},
        {"messages": json.dumps(CHAT)},
        {"prompt": "Who wrote Middlemarch"},
        {"prompt": "Q: Who wrote Emma?\nA: Jane Austen\n\nQ: Who wrote Middlemarch?\nA:"},
        {**ASKED, "question_id": "7", "id": "3"},
        {**ASKED, "group": "novels"},
    ],
)
def test_the_same_question_in_other_clothes_is_together(again: dict[str, Any]) -> None:
    assert groups(ASKED, again, {"question": "Who wrote Emma?"}) == [0, 0, 2]


def test_examples_before_a_question_do_not_split_it() -> None:
    rows = [{"prompt": f"Q: {n}?\nA: {n}\n\nQ: Who wrote Middlemarch?\nA:"} for n in range(3)]
    assert groups(*rows, {"prompt": "Q: 1?\nA: 1\n\nQ: Who wrote Emma?\nA:"}) == [0, 0, 0, 3]


@pytest.mark.parametrize(
    "other",
    [
        {"question": "Is 2 > 3?"},
        {"question": "Is 2 < 3?", "choices": ["yes", "no"]},
        {"question": "", "id": "Is 2 < 3?"},
        {},
    ],
)
def test_other_questions_are_apart(other: dict[str, Any]) -> None:
    assert groups({"question": "Is 2 < 3?"}, other) == [0, 1]


def test_rows_that_share_a_group_or_an_id_are_together_also_by_way_of_others() -> None:
    rows = [
        {"question": "p?", "group": 1},
        {"question": "b?", "group": 2.0, "question_id": "x"},
        {"question": "c?", "group": float("nan"), "question_id": "x"},
        {"question": "P ?", "group": 2},
        {"question": "d?"},
    ]
    assert groups(*rows) == [0, 0, 0, 0, 4]


def test_a_last_turn_that_many_share_does_not_join_what_an_id_tells_apart() -> None:
    chats = [{"messages": [{"role": "user", "content": "Sure?"}], "question_id": n} for n in (1, 2)]
    assert groups(*chats) == [0, 1]


def test_a_run_never_divides_a_group(tmp_path: Path) -> None:
    rows = [
        {"question": f"What is {n}?", "answers": [str(n)], "group": n // 7 or None}
        for n in range(120)
    ]
    data = DataSettings(file=str(tiny_run.write_lines(tmp_path / "own.jsonl", rows)))
    parts = [TASK.questions(split, data, 3) for split in ("train", "validation", "test")]
    names = [{question.cluster for question in part} for part in parts]
    assert sum(map(len, parts)) == 120 and all(parts)
    assert not names[0] & names[1] and not names[0] & names[2] and not names[1] & names[2]
