"""Your own file of questions: what it may hold, and what is said about what it may not."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from grace.config import DataSettings
from grace.errors import ConfigError, DataError
from grace.pipeline.labelling import count_questions
from grace.records import Question
from grace.tasks import jsonl, load_task, values
from grace.tasks.prompts import draw_training

SPLITS = ("train", "validation", "test")


def open_row(number: int, **more: Any) -> dict[str, Any]:
    return {"question": f"What is number {number}?", "answers": [f"thing {number}"], **more}


def write(file: Path, rows: Iterable[dict[str, Any]]) -> str:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(file)


def settings(file: str, train: int = 1, validation: int = 1, test: int = 1) -> DataSettings:
    return DataSettings(task="jsonl", file=file, train=train, validation=validation, test=test)


def read(data: DataSettings, seed: int = 0) -> dict[str, list[Question]]:
    task = load_task("jsonl")
    return {split: task.questions(split, data, seed) for split in SPLITS}  # type: ignore[arg-type]


def one(tmp_path: Path, row: dict[str, Any]) -> Question:
    """Return the question of a row, read among others."""
    file = write(
        tmp_path / "own.jsonl",
        [row | {"split": "test"}, open_row(0, split="train"), open_row(1, split="validation")],
    )
    return read(settings(file))["test"][0]


@pytest.mark.parametrize(
    ("choices", "answer", "expected"),
    [
        (["x", "y", "z"], "B", "B"),
        (["x", "y", "z"], "b", "B"),
        (["x", "y", "z"], "y", "B"),
        (["x", "y", "z"], 1, "B"),
        (["x", "y", "z"], ["B"], "B"),
        (["A", "B", "AB", "O"], "AB", "C"),
        (["A", "B", "AB", "O"], "B", "B"),
        ([2, 3, 4], "4", "C"),
        ([10, 20, 30], 20, "B"),
        ([str(n) for n in range(10)], "J", "J"),
    ],
)
def test_the_right_choice_is_a_letter_a_text_or_an_index(
    tmp_path: Path, choices: list[Any], answer: Any, expected: str
) -> None:
    question = one(tmp_path, {"question": "Which?", "choices": choices, "answer": answer})
    assert question.answers == (expected,)
    assert question.choices == tuple(map(str, choices))


BAD_LINES = [
    ("[1]", "expected an object, found a list"),
    ("null", "expected an object, found null"),
    ('{"answers": ["a"]}', '"question" is missing'),
    ('{"question": ["q"], "answers": ["a"]}', r"\"question\" is \['q'\]"),
    ('{"question": true, "answers": ["a"]}', '"question" is True'),
    ('{"question": "q", "answers": ["a", " "]}', "\"answers\" is ' '; write a text"),
    ('{"question": "q", "answers": [null]}', '"answers" is null; write a text'),
    ('{"question": "q", "answers": ["a"], "answer": "a"}', 'both "answers" and "answer"'),
    ('{"question": "q", "choices": ["x", "y"]}', '"answer" is missing'),
    ('{"question": "q", "choices": ["x"], "answer": "A"}', "1 choice; give 2 to 10 as a list"),
    ('{"question": "q", "choices": ["x", ""], "answer": "A"}', "\"choices\" is ''; write a text"),
    ('{"question": "q", "choices": ["x", "y"], "answer": 3}', "3 is none of the choices"),
    (
        '{"question": "q", "choices": ["x", "y"], "answer": true}',
        "'True' is none of the choices",
    ),
    ('{"question": "q", "choices": ["B", "A"], "answer": "A"}', "'A' could mean more than one"),
    ('{"question": "q", "choices": [1, 2, 3], "answer": 1}', "1 could mean more than one choice"),
    ('{"question": "q", "answers": ["a"], "id": ""}', "\"id\" is ''"),
    ('{"question": "\\ud800", "answers": ["a"]}', "half a surrogate pair"),
    ('{"question": "q", "answers": ["a"]} {"question": "r"}', "not JSON: Extra data at column 37"),
    ('{"question": "q', "not JSON: Unterminated string starting at column 14"),
    ("[" * 100_000, "not readable as JSON"),
    (json.dumps({"question": [["x" * 99_999]] * 99, "answers": "a"}), r'"question" is \[\['),
]


@pytest.mark.parametrize(("line", "message"), BAD_LINES, ids=lambda v: v[:60])
def test_a_bad_line_is_named_with_its_number_and_the_remedy(
    tmp_path: Path, line: str, message: str
) -> None:
    file = tmp_path / "own.jsonl"
    file.write_text(f"{json.dumps(open_row(1))}\n\n{line}\n{json.dumps(open_row(2))}\n", "utf-8")
    with pytest.raises(DataError, match=rf"own\.jsonl:3: .*{message}") as caught:
        read(settings(str(file)))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_all_bad_lines_are_named_at_once(tmp_path: Path) -> None:
    file = tmp_path / "my: own.jsonl"
    lines = [json.dumps(open_row(number)) for number in range(40)]
    lines[30], lines[20], lines[10], lines[5] = '{"question": ', "null", '{"answers": ["a"]}', "{}"
    file.write_text("\n".join(lines), "utf-8")
    wanted = r'my: own\.jsonl:6: "question" is missing .*; 3 more lines cannot be read: 11, 21, 31$'
    with pytest.raises(DataError, match=wanted):
        read(settings(str(file)))
    with pytest.raises(DataError, match=wanted):
        count_questions(file, DataSettings())
    file.write_text("\n".join(["null"] * 30 + lines[-3:]), "utf-8")
    with pytest.raises(DataError, match=r"\.jsonl:1: .*; 29 more lines .*: 2, .*, 10, 11, \.\.\.$"):
        read(settings(str(file)))


def test_bytes_that_are_not_utf_8_are_named_with_their_place(tmp_path: Path) -> None:
    file = tmp_path / "latin.jsonl"
    file.write_bytes(b'{"question": "q", "answers": ["a"]}\n{"question": "caf\xe9"}\n')
    with pytest.raises(DataError, match=r"latin\.jsonl:2: byte 18 of the line is not UTF-8"):
        read(settings(str(file)))


def test_a_byte_order_mark_crlf_blank_lines_and_line_separators_are_fine(tmp_path: Path) -> None:
    file = tmp_path / "windows.jsonl"
    rows = [
        json.dumps(open_row(n) | {"meta": "a\u2028b\x85"}, ensure_ascii=False) for n in range(3)
    ]
    file.write_bytes(b"\xef\xbb\xbf" + "\r\n \r\n".join(rows).encode())
    assert sum(map(len, read(settings(str(file))).values())) == 3


def test_a_file_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no file .*nowhere\.jsonl; check the path"):
        read(settings(str(tmp_path / "nowhere.jsonl")))
    with pytest.raises(ConfigError, match=r"give --file FILE \(data\.file\)"):
        read(settings(""))
    (tmp_path / "empty.jsonl").write_text("\n\n")
    with pytest.raises(DataError, match=r"empty\.jsonl is empty; write one"):
        read(settings(str(tmp_path / "empty.jsonl")))


def test_the_same_id_twice_is_refused_with_both_lines(tmp_path: Path) -> None:
    file = write(tmp_path / "own.jsonl", [open_row(1, id="x"), open_row(2), open_row(3, id="x")])
    with pytest.raises(DataError, match=r"own\.jsonl:3: id 'x' is also at .*own\.jsonl:1; make"):
        read(settings(file))


@pytest.mark.parametrize(("first", "again"), [("x", " x"), (2, 2.0), (7, "7")])
def test_an_id_that_is_spelt_in_two_ways_is_the_same(
    first: Any, again: Any, tmp_path: Path
) -> None:
    file = write(tmp_path / "own.jsonl", [open_row(1, id=first), open_row(2, id=again)])
    with pytest.raises(DataError, match=rf"own\.jsonl:2: id '{first}' is also at .*own\.jsonl:1"):
        read(settings(file))


def test_a_file_without_splits_is_divided_by_the_seed(tmp_path: Path) -> None:
    file = write(tmp_path / "own.jsonl", map(open_row, range(40)))
    data = settings(file, 20, 8, 12)
    drawn = read(data)
    assert [len(drawn[split]) for split in SPLITS] == [20, 8, 12]
    assert len({question.id for questions in drawn.values() for question in questions}) == 40
    assert read(data) == drawn != read(data, seed=1)


def test_questions_with_one_stem_and_other_options_are_all_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [
        {"question": "Which is true?", "choices": [f"{n}", f"not {n}"], "answer": "A"}
        for n in range(12)
    ]
    file = write(tmp_path / "own.jsonl", [*rows, rows[3], rows[5] | {"answer": "B"}])
    caplog.set_level(logging.WARNING, logger="grace.tasks")
    drawn = read(DataSettings(task="jsonl", file=file))
    assert sum(map(len, drawn.values())) == 12
    assert (
        "2 of 14 questions repeat another and are left out; 1 of them accept another text, so put "
        "all into one list"
    ) in caplog.text


@pytest.mark.parametrize(
    "none", [[], None, "", {"text": [], "answer_start": []}, {"value": None}, float("nan")]
)
def test_questions_without_an_answer_are_left_out_and_counted(
    none: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [open_row(n) | ({"answers": none} if n % 4 == 0 else {}) for n in range(12)]
    file = write(tmp_path / "own.jsonl", rows)
    assert sum(map(len, read(DataSettings(task="jsonl", file=file)).values())) == 9
    assert f"{file}: 3 of 12 questions have no answer and are left out" in caplog.text
    rows = [row | {"split": SPLITS[n % 3]} for n, row in enumerate(rows)]
    file = write(tmp_path / "split.jsonl", rows)
    assert [*map(len, read(DataSettings(task="jsonl", file=file)).values())] == [3, 3, 3]
    empty = write(tmp_path / "empty.jsonl", [row | {"answers": none} for row in rows])
    with pytest.raises(DataError, match=r'empty\.jsonl:1: "answers" is missing or empty; add it'):
        read(DataSettings(task="jsonl", file=empty))


def test_a_file_that_is_too_small_is_told_which_sizes_fit(tmp_path: Path) -> None:
    file = write(tmp_path / "own.jsonl", [*map(open_row, range(70)), open_row(3)])
    with pytest.raises(
        DataError,
        match=r"70 different questions, but the settings ask for 3500; set e\.g\. "
        r"data\.train=40 data\.validation=10 data\.test=20",
    ):
        read(settings(file, 2000, 500, 1000))
    assert read(settings(file, 40, 10, 20))


@pytest.mark.parametrize(
    ("available", "asked", "sizes"),
    [
        (60, {}, (30, 10, 20)),
        (61, {}, (31, 10, 20)),
        (3, {}, (1, 1, 1)),
        (3501, {}, (2000, 500, 1000)),
        (60, {"train": 10}, (10, 16, 33)),
        (60, {"train": 10, "shots": 5}, (10, 15, 30)),
        (600, {"test": 300, "shots": 5}, (225, 75, 300)),
        (60, {"train": 20, "validation": 20}, (20, 20, 20)),
    ],
)
def test_without_settings_all_questions_are_used_in_three_disjoint_parts(
    available: int, asked: dict[str, int], sizes: tuple[int, int, int], tmp_path: Path
) -> None:
    file = write(tmp_path / "own.jsonl", map(open_row, range(available)))
    drawn = read(DataSettings(task="jsonl", file=file, **asked))
    shots, training = draw_training(load_task("jsonl"), DataSettings(file=file, **asked), 0)
    assert len(shots) == asked.get("shots", 0)
    parts = [shots + training, drawn["validation"], drawn["test"]]
    assert tuple(map(len, parts)) == (sizes[0] + len(shots) * ("train" in asked), *sizes[1:])
    assert len({q.id for part in parts for q in part}) == sum(map(len, parts))


def test_split_files_are_used_whole_without_settings(tmp_path: Path) -> None:
    count = {"train": 30, "validation": 4, "test": 7}
    for place, split in enumerate(SPLITS):
        rows = [open_row(100 * place + n) for n in range(count[split])]
        write(tmp_path / f"{split}.jsonl", rows)
    drawn = read(DataSettings(task="jsonl", dir=str(tmp_path)))
    assert {split: len(drawn[split]) for split in SPLITS} == count
    (tmp_path / "validation.jsonl").unlink()
    held_out = read(DataSettings(task="jsonl", dir=str(tmp_path)))
    assert [len(held_out[split]) for split in SPLITS] == [23, 7, 7]


def test_the_split_field_is_followed(tmp_path: Path) -> None:
    rows = [open_row(n, split=split) for n, split in enumerate(["test", "train", "validation"])]
    drawn = read(settings(write(tmp_path / "own.jsonl", rows)))
    assert [drawn[split][0].answers[0] for split in SPLITS] == ["thing 1", "thing 2", "thing 0"]


def test_without_validation_lines_it_is_held_out_of_train(tmp_path: Path) -> None:
    rows = [open_row(n, split="test" if n < 2 else "train") for n in range(6)]
    drawn = read(settings(write(tmp_path / "own.jsonl", rows), 3, 1, 2))
    assert {question.answers[0] for question in drawn["test"]} == {"thing 0", "thing 1"}


def test_a_split_on_some_lines_or_of_another_name_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "own.jsonl", [open_row(1, split="train"), open_row(2)])
    with pytest.raises(DataError, match=r'own\.jsonl:2: "split" is None; write one of train'):
        read(settings(file))
    file = write(tmp_path / "own.jsonl", [open_row(1, split="dev")])
    with pytest.raises(DataError, match=r'own\.jsonl:1: "split" is \'dev\''):
        read(settings(file))
    file = write(tmp_path / "own.jsonl", [open_row(n, split="train") for n in range(3)])
    with pytest.raises(DataError, match="has no test questions"):
        read(settings(file))
    for repeated, splits in ((False, ("test", "train")), (True, ("test", "train", "validation"))):
        rows = [open_row(0 if repeated else n, split=split) for n, split in enumerate(splits)]
        write(tmp_path / "own.jsonl", rows)
        with pytest.raises(DataError, match="no train questions besides those of validation and"):
            load_task("jsonl").questions("train", DataSettings(task="jsonl", file=str(file)), 0)


def test_a_folder_of_three_files_is_read(tmp_path: Path) -> None:
    for n, split in enumerate(SPLITS):
        write(tmp_path / f"{split}.jsonl", [open_row(n)])
    drawn = read(settings(str(tmp_path)))
    assert [drawn[split][0].answers[0] for split in SPLITS] == ["thing 0", "thing 1", "thing 2"]
    assert read(DataSettings(dir=str(tmp_path), train=1, validation=1, test=1)) == drawn


def test_a_folder_of_parquet_files_is_one_table(tmp_path: Path) -> None:
    rows = [{"question": f"What is {n}?", "answer": f"thing {n}"} for n in range(12)]
    for part in (0, 1):
        table = pyarrow.Table.from_pylist(rows[part::2])
        pyarrow.parquet.write_table(table, tmp_path / f"part-{part}.parquet")
    drawn = read(DataSettings(file=str(tmp_path)))
    found = {question.text for split in SPLITS for question in drawn[split]}
    assert found == {row["question"] for row in rows}


def test_both_kinds_in_one_file_are_asked_and_answered_each_in_its_way(tmp_path: Path) -> None:
    task = load_task("jsonl")
    choice = one(tmp_path, {"question": "Which?", "choices": ["x", "y"], "answer": "y"})
    assert [turn["role"] for turn in task.messages(choice, DataSettings())] == ["system", "user"]
    assert task.answer("Explanation: so\nAnswer: B", choice.choices) == "B"
    openly = one(tmp_path, open_row(5))
    assert [turn["role"] for turn in task.messages(openly, DataSettings())] == ["user"]
    assert task.answer("Guess: The Thing!") == "thing"
    assert task.answer(" \n") is None


def test_a_lone_letter_is_an_answer_only_if_an_option_has_it() -> None:
    task = load_task("jsonl")
    assert task.answer("C.", ["x", "y", "z"]) == task.answer("Answer: C", ["x", "y", "z"]) == "C"
    assert task.answer("C.") == "C"
    assert task.answer("C.", ["x", "y"]) is None
    assert task.answer("Guess: y", ["x", "y"]) == task.answer("(B)", ["x", "y"]) == "B"
    assert task.answer("CD", ["x", "y"]) is None


@pytest.mark.parametrize("kind", ["", "choice"])
def test_without_a_letter_or_an_option_there_is_no_vote(kind: str) -> None:
    task = load_task("jsonl", kind)
    assert task.answer("I don't know", ["4", "7"]) is None
    assert task.answer("Explanation: let us think...", ["4", "7"]) is None
    assert task.answer("Explanation: ...\nAnswer: B", ["4", "7"]) == "B"


def test_settings_that_conversations_do_not_use_are_named(tmp_path: Path, caplog: Any) -> None:
    chats = [{"messages": [{"role": "user", "content": f"Is {n} odd?"}]} for n in range(9)]
    rows = [chat | {"answers": [f"thing {n}"]} for n, chat in enumerate(chats)]
    file = write(tmp_path / "own.jsonl", rows)
    unused = dataclasses.replace(
        settings(file), system="Be brief.", template="{question}!", shots=1
    )
    for data, said in [(settings(file), False), (unused, True)]:
        read(data)
        named = "conversations stand as they are, without data.system and data.template and data.s"
        assert (named in caplog.text) is said
    plain = write(tmp_path / "plain.jsonl", map(open_row, range(9)))
    caplog.clear()
    read(dataclasses.replace(unused, file=plain))
    assert "conversations" not in caplog.text


@pytest.mark.parametrize("named", [False, True])
def test_a_row_is_parsed_once_for_a_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    seen: list[str] = []

    def parse(row: Any, data: DataSettings) -> Question:
        seen.append(row.where)
        return values.parse(row, data)

    monkeypatch.setattr(jsonl, "parse", parse)
    rows = [open_row(n) | ({"split": SPLITS[n % 3]} if named else {}) for n in range(9)]
    data = settings(write(tmp_path / "own.jsonl", rows))
    for split in SPLITS:
        seen.clear()
        assert load_task("jsonl").questions(split, data, 0)
        assert len(seen) == len({*seen}) == 9
