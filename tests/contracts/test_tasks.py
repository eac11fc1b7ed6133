"""What every task promises; a new file in `grace/tasks` is found and held to it.

Tasks of the Hub get made-up rows in the Hub's fields from `tests/data/hub_rows.json`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grace.answers import LETTERS, normalise
from grace.config import DataSettings
from grace.errors import UserInputError
from grace.grading import load_grader
from grace.plugins import find
from grace.records import Question, from_json, to_json
from grace.tasks import Task, load_task
from grace.tasks import rows as rows_module

SPLITS = ("train", "validation", "test")
HUB_ROWS = json.loads((Path(__file__).parents[1] / "data" / "hub_rows.json").read_text("utf-8"))
HOSTILE = "What is {question} in <CNF> %s \\n {0} <|im_end|>, and 中文?"


@pytest.fixture(autouse=True)
def hub(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(path: str, config: str | None, split: str, name: str) -> list[dict[str, Any]]:
        assert path in HUB_ROWS, f"add a few made-up rows of {path} to tests/data/hub_rows.json"
        return list(HUB_ROWS[path][split])

    monkeypatch.setattr(rows_module, "load_from_hub", rows)


@pytest.fixture(params=find("grace.tasks"))
def task(request: pytest.FixtureRequest) -> Task:
    return load_task(request.param)


@pytest.fixture
def data(task: Task, tmp_path: Path) -> DataSettings:
    """Settings under which every task finds two, one and one question."""
    lines = [{"question": f"What is {n}?", "answers": [f"thing {n}"]} for n in range(3)]
    mixed = [*lines, {"question": "Which is 7?", "choices": ["6", "7"], "answer": "B"}]
    file = tmp_path / "own.jsonl"
    file.write_text("\n".join(map(json.dumps, mixed)), encoding="utf-8")
    return DataSettings(task=task.name, file=str(file), train=2, validation=1, test=1)


@pytest.fixture
def drawn(task: Task, data: DataSettings) -> dict[str, list[Question]]:
    return {split: task.questions(split, data, seed=0) for split in SPLITS}  # type: ignore[arg-type]


def right_response(question: Question) -> str:
    if question.choices:
        return f"Explanation: because.\nAnswer: {question.answers[0]}"
    return f"Guess: {question.answers[0]}"


def test_the_name_is_the_file_and_the_grader_exists(task: Task, request: Any) -> None:
    assert task.name == request.node.callspec.params["task"]
    assert task.kind in ("open", "choice")
    load_grader(task.grader)


def test_as_many_questions_as_asked_for(drawn: dict[str, list[Question]]) -> None:
    assert {split: len(questions) for split, questions in drawn.items()} == {
        "train": 2,
        "validation": 1,
        "test": 1,
    }


def test_ids_are_unique_and_no_text_is_in_two_splits(drawn: dict[str, list[Question]]) -> None:
    questions = [question for split in SPLITS for question in drawn[split]]
    assert len({question.id for question in questions}) == len(questions)
    texts = [{normalise(question.text) for question in drawn[split]} for split in SPLITS]
    assert sum(map(len, texts)) == len(set.union(*texts))


def test_the_same_seed_draws_the_same_questions(
    task: Task, data: DataSettings, drawn: dict[str, list[Question]]
) -> None:
    for split in SPLITS:
        assert task.questions(split, data, seed=0) == drawn[split]  # type: ignore[arg-type]


def test_questions_are_well_formed_and_survive_json(
    task: Task, drawn: dict[str, list[Question]]
) -> None:
    for question in (question for split in SPLITS for question in drawn[split]):
        assert question.task == task.name
        assert question.id.strip() and question.text.strip()
        assert question.answers and all(answer.strip() for answer in question.answers)
        if task.kind == "choice":
            assert question.choices
        if question.choices:
            assert len(question.answers) == 1
            assert question.answers[0] in LETTERS[: len(question.choices)]
        assert from_json(Question, json.loads(json.dumps(to_json(question)))) == question


def test_the_right_answer_is_graded_right_and_votes(
    task: Task, drawn: dict[str, list[Question]]
) -> None:
    grader = load_grader(task.grader)
    for question in drawn["test"]:
        assert grader(right_response(question), question)
        assert task.answer(right_response(question))
        assert not grader("", question)
    assert task.answer("") is None


def test_a_letter_that_no_option_has_is_no_answer(task: Task, data: DataSettings) -> None:
    choices = ("x", "y")
    try:
        task.messages(Question("q", task.name, "Why?", ("A",), choices), data)
    except UserInputError:
        pytest.skip("open questions only")
    assert task.answer("So.\nAnswer: (B)", choices) == "B"
    assert task.answer("So.\nAnswer: (C)", choices) is None
    assert task.answer("Answer: C", (*choices, "z")) == "C"
    assert task.answer("Answer: C") == task.answer("Answer: C", ()) == "C"  # options not known


def test_the_question_stands_in_the_last_user_turn_as_it_was_written(
    task: Task, data: DataSettings
) -> None:
    choices = ("{x}", "<CNF> %d") if task.kind == "choice" else ()
    turns = task.messages(Question("q", task.name, HOSTILE, ("A",), choices), data)
    assert [turn["role"] for turn in turns] in (["user"], ["system", "user"])
    assert all(part in turns[-1]["content"] for part in (HOSTILE, *choices))
    assert all(HOSTILE not in turn["content"] for turn in turns[:-1])


def test_a_question_of_the_other_kind_is_refused_or_asked_with_its_choices(
    task: Task, data: DataSettings
) -> None:
    choices = () if task.kind == "choice" else ("one", "two")
    try:
        turns = task.messages(Question("q", task.name, "Why?", ("A",), choices), data)
    except UserInputError as error:
        assert "choices" in str(error)
    else:
        assert choices and all(choice in turns[-1]["content"] for choice in choices)


def test_a_system_prompt_of_ones_own_replaces_the_tasks(task: Task) -> None:
    choices = ("x", "y") if task.kind == "choice" else ()
    question = Question("q", task.name, "Why?", ("A",), choices)
    own, other = (
        task.messages(question, DataSettings(task=task.name, system=text))
        for text in ("Be {x}.", "B")
    )
    assert own[0] == {"role": "system", "content": "Be {x}."}
    assert own[1:] == other[1:] and len(own) == 2
