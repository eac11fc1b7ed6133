"""One's own data in whatever shape: the same questions, and a line that says what was read."""

from __future__ import annotations

import ast
import csv
import json
import logging
import re
import time
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pytest
from pyarrow import parquet

from grace.answers import kind_of
from grace.config import DataSettings
from grace.errors import DataError
from grace.pipeline.labelling import count_questions, digest_questions
from grace.records import Question
from grace.store.inputs import Row, hub_splits, read_rows
from grace.tasks import load_task
from grace.tasks.answered import read_answers
from grace.tasks.rows import note
from grace.tasks.values import parse, question_rows

ROWS: list[dict[str, Any]] = [
    {"id": f"q{n}", "query": f"What, in all, is {n}?", "target": [f"{n}", f'"{n}"'], "page": n}
    for n in range(12)
]


@pytest.fixture(autouse=True)
def notes(caplog: pytest.LogCaptureFixture) -> None:
    note.cache_clear()
    caplog.set_level(logging.WARNING, logger="grace.tasks")


def write(folder: Path, ending: str, rows: Sequence[dict[str, Any]] = ROWS) -> Path:
    """Write rows as what the ending says, lists in CSV as JSON."""
    file = folder / f"own.{ending}"
    if ending == "parquet":
        parquet.write_table(pyarrow.Table.from_pylist(list(rows)), file, row_group_size=5)
    elif ending == "jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    else:
        with file.open("w", encoding="utf-8-sig", newline="") as out:
            cells = csv.writer(out, delimiter="\t" if ending == "tsv" else ",")
            cells.writerow(rows[0])
            for row in rows:
                cells.writerow(json.dumps(v) if isinstance(v, list) else v for v in row.values())
    return file


def questions(source: str | Path, **data: Any) -> list[Question]:
    settings = DataSettings(task="jsonl", file=str(source), **data)
    return [parse(row, settings) for row in question_rows(source, settings)]


def one(fields: dict[str, Any], **data: Any) -> Question:
    return parse(Row("own.jsonl:1", fields), DataSettings(**data))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A Hub that holds what the test puts there, by name and configuration."""
    held: dict[str, Any] = {}

    def load_dataset(path: str, config: str | None, split: str | None = None) -> Any:
        if (path, config) not in held:
            raise ConnectionError(f"Couldn't reach '{path}' on the Hub (LocalEntryNotFoundError)")
        found = datasets.DatasetDict(
            {name: datasets.Dataset.from_list(rows) for name, rows in held[path, config].items()}
        )
        return found[split] if split else found

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return held


@pytest.mark.parametrize("ending", ["jsonl", "csv", "tsv", "parquet"])
def test_every_file_form_gives_the_same_questions(
    ending: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = write(tmp_path, ending)
    expected = [
        Question(f"q{n}", "jsonl", f"What, in all, is {n}?", (f"{n}", f'"{n}"')) for n in range(12)
    ]
    assert questions(file) == expected
    assert caplog.messages == [f"{file}: question in query, answers in target; ignored: page"]
    some = list(read_rows(file, 4, 7))
    assert [row.fields["id"] for row in some] == ["q4", "q5", "q6"]
    place = f"{file} row 4" if ending == "parquet" else f"{file}:{5 if ending == 'jsonl' else 6}"
    assert some[0].where == place


def test_a_hub_data_set_gives_the_same_questions_by_split(hub: dict[str, Any]) -> None:
    hub["me/own", None] = {"train": ROWS[:8], "test": ROWS[8:]}
    hub["me/one", "small"] = {"train": ROWS}
    assert len(questions("hf:me/own:test")) == 4
    assert len(questions("hf:me/own::train")) == 8
    assert len(questions("hf:me/one:small")) == 12
    assert hub_splits("hf:me/own:train") == {"train": "hf:me/own:train"}
    with pytest.raises(
        DataError, match=r"has the splits train, test; name one, e\.g\. hf:me/own::"
    ):
        questions("hf:me/own")
    (row,) = read_rows("hf:me/own:test", 2, 3)
    assert (row.where, row.fields["id"]) == ("hf:me/own:test row 2", "q10")


def test_questions_of_the_hub_are_told_apart_by_what_they_say(hub: dict[str, Any]) -> None:
    hub["me/own", None] = {"train": ROWS}
    first = digest_questions("hf:me/own", DataSettings())
    hub["me/own", None] = {"train": [{**row, "page": 0} for row in ROWS]}
    assert digest_questions("hf:me/own", DataSettings()) == first
    hub["me/own", None] = {"train": [{**ROWS[0], "query": "Why?"}, *ROWS[1:]]}
    assert digest_questions("hf:me/own", DataSettings()) != first
    assert count_questions("hf:me/own", DataSettings()) == 12


def test_a_run_takes_the_splits_of_a_hub_data_set_or_divides_the_only_one(
    hub: dict[str, Any],
) -> None:
    hub["me/own", None] = {"train": ROWS[:8], "test": ROWS[8:], "extra": ROWS[:1]}
    hub["me/one", None] = {"train": ROWS}
    hub["me/odd", None] = {"dev": ROWS[:6], "extra": ROWS[6:]}
    task = load_task("jsonl")
    for source, sizes in (("hf:me/own", (6, 2, 4)), ("hf:me/one", (6, 2, 4))):
        data = DataSettings(task="jsonl", file=source)
        drawn = [task.questions(split, data, 0) for split in ("train", "validation", "test")]  # type: ignore[arg-type]
        assert tuple(map(len, drawn)) == sizes
    with pytest.raises(DataError, match=r"hf:me/odd has no train; found: dev, extra"):
        task.questions("train", DataSettings(task="jsonl", file="hf:me/odd"), 0)


def test_a_test_split_with_hidden_answers_gives_its_place_to_validation(
    hub: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"question": f"{n}?", "choices": ["x", "y"], "label": n % 2} for n in range(12)]
    hidden = [row | {"label": -1} for row in rows[9:]]
    hub["me/own", None] = {"train": rows[:6], "validation": rows[6:9], "test": hidden}
    data = DataSettings(task="jsonl", file="hf:me/own")
    drawn = load_task("jsonl").questions("test", data, 0)
    assert {question.text for question in drawn} == {"6?", "7?", "8?"}
    assert "3 of 3 test questions have no answer and are left out" in caplog.text


def test_a_hub_that_cannot_be_reached_is_told_in_a_line_with_the_remedy(
    hub: dict[str, Any],
) -> None:
    with pytest.raises(DataError) as caught:
        questions("hf:me/gone")
    assert str(caught.value) == (
        "me/gone cannot be loaded from the Hugging Face Hub (ConnectionError: Couldn't reach "
        "'me/gone' on the Hub (LocalEntryNotFoundError)); go online once, or check hf:me/gone "
        "(hf:OWNER/NAME:CONFIG:SPLIT), or download a file of it and name that"
    )


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet", "CSV"])
def test_a_folder_of_split_files_may_be_of_any_form(ending: str, tmp_path: Path) -> None:
    for place, split in enumerate(("train", "validation", "test")):
        rows = ROWS[4 * place : 4 * place + 4]
        write(tmp_path, ending, rows).rename(tmp_path / f"{split}.{ending}")
    data = DataSettings(task="jsonl", file=str(tmp_path))
    drawn = load_task("jsonl").questions("test", data, 0)
    assert {question.id for question in drawn} == {"q8", "q9", "q10", "q11"}
    (tmp_path / "test.tsv").write_text("question\tanswer\na?\tb\n")
    with pytest.raises(DataError, match=rf"test\.{ending}.*are the same split; remove one of them"):
        load_task("jsonl").questions("test", data, 0)


@pytest.mark.parametrize(
    ("fields", "answers"),
    [
        ({"question": "Q?", "answer": "a"}, ("a",)),
        ({"Question": "Q?", "Gold": 7}, ("7",)),
        ({"prompt": "Q?", "label": ["a", "b"]}, ("a", "b")),
        ({"input": "Q?", "target": "a", "question_type": "x"}, ("a",)),
        ({"question": "Q?", "prompt": "Answer: Q?", "answer": "a", "label": 3}, ("a",)),
        ({"question": "Q?", "answers": {"text": ["a", "b"], "answer_start": [1, 2]}}, ("a", "b")),
        ({"question": "Q?", "answer": {"value": "a", "aliases": ["b"]}}, ("a", "b")),
        ({"question": "Q?", "answer": {"value": "a", "aliases": None}}, ("a",)),
        ({"question": "Q?", "answer": {"value": "a", "aliases": "bc"}}, ("a", "bc")),
        ({"question": "Q?", "answers": None, "answer": "a"}, ("a",)),
        ({"question": "Q?", "answer": 1992.0}, ("1992",)),
        ({"question": "Q?", "answer": 0.5}, ("0.5",)),
        ({"question": "Q?", "answer": [Decimal("0.50"), Decimal("7.00")]}, ("0.50", "7")),
        ({"question": "Q?", "choices": [], "answer": "a"}, ("a",)),
        ({"question": "Q?", "answers.text": ["a", "b"], "answers.answer_start": [1]}, ("a", "b")),
        ({"question": "Q?", "answer.value": "a", "answer.aliases": ["b"]}, ("a", "b")),
        ({"question": "Q?", "answer": [True]}, ("yes", "true")),
        ({"problem": "Q?", "answer": "So $x = \\boxed{\\frac{1}{2}}$."}, ("\\frac{1}{2}",)),
        ({"instruction": "Q?", "input": "", "target": "a"}, ("a",)),
        ({"question": "Q?", "answer": "1986", "answer_aliases": ["in 1986"]}, ("1986", "in 1986")),
        ({"question": "Q?", "answer": "a", "aliases": []}, ("a",)),
        ({"question": "Q?", "answer": "a", "alternative_answers": ["b"]}, ("a", "b")),
        ({"question": "Q?", "answer": "So.\n#### 7", "final_answer": "7"}, ("7",)),
        ({"question": "Q?", "answer": "1,000", "final_answer": 1000}, ("1,000",)),
        ({"question": "Q?", "Answer": "a", "Answer - why": "b"}, ("a",)),
        ({"question": "Q?", "answers": ["a", "b"], "label": 1}, ("a", "b")),
        ({"question": "Q?", "answer": ["cat a | sort"]}, ("cat a | sort",)),
        (
            {"question": "Q?", "answer": "| Name | Town |\n|---|---|"},
            ("| Name | Town |\n|---|---|",),
        ),
        ({"question": "Q?", "answer": None, "answer_number": 7}, ("7",)),  # MGSM
        ({"question": "Q?", "answer": "#### 1,080"}, ("1,080",)),
        ({"question": "Q?", "answer": "#### a\r\n####7"}, ("7",)),
        ({"question": "Q?", "answer": "a", "reference": "A", "gold": None}, ("a",)),
        ({"question": "Q?", "Options": [], "choices": None, "answer": "a"}, ("a",)),
    ],
)
def test_usual_columns_are_known_and_others_ignored(
    fields: dict[str, Any], answers: tuple[str, ...]
) -> None:
    found = one(fields)
    assert (found.text, found.answers, found.choices) == ("Q?", answers, ())


@pytest.mark.parametrize(
    "fields",
    [
        {"question": "Q?", "options": ["4", "7", "9"], "answer": "B"},
        {"question": "Q?", "options": ["4", "7", "9"], "label": 1},
        {"question": "Q?", "choices": ["4", "7", "9"], "answer": "7"},
        {"question": "Q?", "A": "4", "B": "7", "C": "9", "answer": "b"},
        {"question": "Q?", "option_a": "4", "option_b": "7", "option_c": "9", "answer": "b"},
        {"question": "Q?", "Choice A": "4", "Choice B": "7", "Choice C": "9", "answer": "b"},
        {"question": "Q?", "a": "4", "b": "7", "c": "9", "answer": "b"},
        {"question": "Q?", "A": "4", "B": "7", "C": "9", "D": None, "answer": "b"},
        {"question": "Q?", "choices": {"text": [4, 7, 9], "label": ["1", "2", "3"]}, "label": "2"},
        {"question": "Q?", "choices": {"text": [4, 7, 9], "label": list("ABC")}, "answerKey": "B"},
        {"question": "Q?", "choices": {"text": [4, 7, 9], "label": ["1", "2", "3"]}, "answer": 2},
        {"question": "Q?", "choices": {"text": [4, 7, 9], "label": [1, 2, 3]}, "answer": "2"},
        {"question": "Q?", "choices": {"text": [4, 7, 9], "label": None}, "answer": 1},
        {"question": "Q?", "choices": [4.0, 7.0, 9.0], "answer": 7.0},
        {"question": "Q?", "choices": ["4", "7", "9"], "answer": 1.0},
        {"question": "Q?", "options": {"A": "4", "B": "7", "C": "9"}, "answer": "B"},
        {"question": "Q?", "options": ["A)4", "B)7", "C)9"], "answer": "7"},  # AQuA
        {"question": "Q?", "options": ["(a) 4", "(b) 7", "(c) 9"], "answer": "B"},
        {"question": "Q?", "options": ["4", "7", "9"], "answer": "B. 7"},
        {"question": "Q?", "optionA": "4", "optionB": "7", "optionC": "9", "answer": "Option B"},
        {"question": "Q?", "choices.text": [4, 7, 9], "choices.label": list("ABC"), "answer": "B"},
        {"question": "Q?", "candidates": ["4", "7", "9"], "answer": 1},
        {"input": "Q?\nOptions:\n(A) 4\n(B) 7\n(C) 9", "target": "(B)"},  # BBH
        {"prompt": "Q?\nA. 4\nB. 7\nC. 9\nAnswer:", "answer": "B"},
        {"question": "Q?\n\nA) 4\nB) 7\nC) 9\n", "answer": "7"},
        {"question": "Q? (A) 4 (B) 7 (C) 9", "AnswerKey": "B"},  # ARC's tables
        {"question": "Q?", "options": "a ) 4 , b ) 7 , c ) 9", "answer": "b"},  # MathQA
        {"question": "Q?", "answers": ["4", "7", "9"], "label": 1},  # ReClor
        {"question": "Q?", "Option - A": "4", "Option - B": "7", "Option - C": "9", "Answer": "B"},
        {"question": "Q?", "choices": ["4", "7", "9"], "answer": "B", "answer_text": "7"},
        {"question": "Q?", "choices": ["4", "7", "9"], "answer": "B", "answer_index": 2},  # from 1
        {"Question - of 99": "Q?"}
        | {f"Answer {n} - of 9 (optional)": 2 * n + (2 if n == 1 else 3) for n in (1, 2, 3)}
        | {"Correct answer(s)": 7},  # Kahoot
    ],
)
def test_the_right_choice_is_found_however_it_is_given(fields: dict[str, Any]) -> None:
    found = one(fields)
    assert (found.choices, found.answers) == (("4", "7", "9"), ("B",))


@pytest.mark.parametrize(
    ("choices", "answer", "letter"),
    [
        (["True", "False"], True, "A"),
        (["no", "yes"], False, "A"),
        (["true", "false"], "False", "B"),
        (["Paris", "Rome"], "rome.", "B"),
    ],
)
def test_an_answer_is_read_as_a_response_would_be(
    choices: list[str], answer: Any, letter: str
) -> None:
    assert one({"question": "Q?", "choices": choices, "answer": answer}).answers == (letter,)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"choices": ["x", "y", "z"], "answer": ["A", "C"]}, "has 2 right choices; write one, or"),
        ({"choices": ["x", "y", "z"], "answer": "A, C"}, "is none of the choices"),
        ({"mc1_targets": {"choices": ["x", "y"], "labels": None}}, "is missing or empty; add it"),
        ({"mc1_targets": {"choices": ["x", "y"], "labels": [1, 1]}}, "is missing or empty; add it"),
        ({"answers": {"spans": [], "types": []}}, "is an empty list"),
        (
            {"answers": [{"text": c, "is_correct": c != "x"} for c in "xyz"]},
            'has wrong answers, too; .* or all as "choices"',
        ),
        (
            {"answers": [{"text": c, "is_incorrect": c == "x"} for c in "xyz"]},
            "has wrong answers, too",
        ),
        ({"instruction": "Translate.", "input": "x", "answer": "y"}, "could be the question"),
        ({"answer": "It is 3 + 4.", "final_answer": "7"}, "--answer-field final_answer"),
        (
            {"choices": ["x", "y"], "answer": "A", "correct_answer": "B"},
            "both .* could be the answer",
        ),
        ({"choices": ["x", "y"], "answer": "x", "target": "B"}, "both .* could be the answer"),
        ({"choices": ["x", "y", "z"], "answer": "A", "label": 2}, "both .* could be the answer"),
        ({"choices": ["x", "y", "z"], "answer": 1, "correct_answer": "2"}, "both .* could be the"),
        (
            {"answer": "Paris|the capital"},
            r'may be several texts: .*: \["a", "b"\], or of one text: ',
        ),
        ({"Answer 1": "x", "Answer 2": "y", "Correct answer(s)": "1,2"}, "is none of the choices"),
        ({"answer_0": "x", "answer_1": "y"}, "--answer-field"),
        ({"answer_options": {"A": "x", "B": "y"}, "mc_options": ["x", "y"], "answer": "x"}, "mean"),
    ],
)
def test_what_is_meant_otherwise_is_refused(fields: dict[str, Any], message: str) -> None:
    question = {} if "input" in fields else {"question": "Q?"}
    with pytest.raises(DataError, match=message):
        one(question | fields)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("own.csv", "| question | answer |\n|---|:--|\n| Q? | a |\n"),
        ("own.json", '{"columns": ["question", "answer"], "index": [0], "data": [["Q?", "a"]]}'),
        ("own.csv", 'question,answers.text,answers.answer_start\nQ?,"[""a""]",[0]\n'),
    ],
)
def test_tables_of_markdown_and_pandas_are_read(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert [(q.text, q.answers) for q in questions(tmp_path / name)] == [("Q?", ("a",))]


@pytest.mark.parametrize(
    ("fields", "answers"),
    [  # as these data sets of the Hub have it
        ({"question": "?", "answer": "She sold 24 + 48 = 72 clips.\n#### 72"}, ("72",)),  # GSM8K
        ({"problem": "?", "solution": "It is $5$.", "answer": "5"}, ("5",)),  # MATH-500
        ({"question": "?", "passage": "...", "answer": True}, ("yes", "true")),  # BoolQ
        ({"question": "?", "answer": False}, ("no", "false")),  # StrategyQA
        ({"question": "?", "answer": "True"}, ("yes", "true")),  # the same in a CSV file
        ({"question": "?", "answer": " FALSE"}, ("no", "false")),
        ({"question": "?", "obj": "x", "possible_answers": '["x", "y"]'}, ("x", "y")),  # PopQA
        (
            {
                "question_stem": "?",
                "choices": {"text": ["x", "y"], "label": ["A", "B"]},
                "answerKey": "B",
            },
            ("B",),
        ),  # OpenBookQA
    ],
)
def test_data_sets_of_the_hub_are_read_as_they_are(
    fields: dict[str, Any], answers: tuple[str, ...]
) -> None:
    question = one(fields)
    assert (question.text, question.answers) == ("?", answers)


def table(file: Path, *records: Sequence[Any]) -> Path:
    with file.open("w", newline="", encoding="utf-8") as out:
        csv.writer(out).writerows(records)
    return file


@pytest.mark.parametrize(
    ("spelt", "answers"),
    [
        ("[1200]", ("1200",)),
        ("[8, 8.0]", ("8", "8")),
        ('[12, "twelve"]', ("12", "twelve")),
        ("{'text': ['x', \"y's\"], 'answer_start': [1, 2]}", ("x", "y's")),
        ("{'value': 'x', 'aliases': ['y'], 'type': None}", ("x", "y")),
        ('{"value": "x", "aliases": ["y"], "type": null}', ("x", "y")),
        ("[{'text': 'x'}, {'text': 'y'}]", ("x", "y")),
        ("[0, 1)", ("[0, 1)",)),  # half open, no structure
        ("a [sic] b", ("a [sic] b",)),
        ("(1, 2)", ("(1, 2)",)),
    ],
)
def test_a_cell_means_what_the_same_value_means_in_json_lines(
    spelt: str, answers: tuple[str, ...], tmp_path: Path
) -> None:
    (question,) = questions(table(tmp_path / "own.csv", ["question", "answers"], ["Q?", spelt]))
    assert question.answers == answers
    if spelt[0] in "[{" and spelt[-1] in "]}":
        value = json.loads(spelt) if '"x"' in spelt or "12" in spelt else ast.literal_eval(spelt)
        assert one({"question": "Q?", "answers": value}).answers == answers


@pytest.mark.parametrize(
    "spelt",
    [
        "{'text': array(['x'], dtype=object), 'answer_start': array([515])}",
        "['x' 'y']",
        "['x'\n 'y']",
        "[1 2]",
        "{'x', 'y'}",
        "[b'x']",
        "['x', ...]",
        '["x", "y"',
        "[" * 5000 + "]",
        '["\\ud800"]',
    ],
)
@pytest.mark.parametrize("column", ["answers", "choices"])
def test_a_cell_that_cannot_be_read_is_refused_with_its_line(
    column: str, spelt: str, tmp_path: Path
) -> None:
    names = {"question": "Q?", **({"answer": "x"} if column == "choices" else {}), column: spelt}
    file = table(tmp_path / "own.csv", list(names), list(names.values()))
    with pytest.raises(DataError, match=rf'own\.csv:2: "{column}" cannot be read: .*; save the'):
        questions(file)


def test_a_named_column_may_be_empty_where_no_answer_is_needed(tmp_path: Path) -> None:
    rows = [{"question": "A?", "key": None}, {"question": "B?", "key": "b"}]
    data = DataSettings(task="jsonl", answer_field="key")
    for ending in ("jsonl", "csv", "parquet"):
        read = question_rows(write(tmp_path, ending, rows), data)
        assert [parse(row, data, graded=False).answers for row in read] == [(), ("b",)]


@pytest.mark.parametrize(
    ("fields", "data", "message"),
    [
        (
            {"prompt": "Q?", "input": "Q?", "answer": "a"},
            {},
            'both "prompt" and "input" could be the question; choose one: --question-field prompt',
        ),
        (
            {"question": "q", "Answer": "of a model", "ANSWER": "a"},
            {},
            'both "Answer" and "ANSWER" could be the answer; choose one: --answer-field Answer',
        ),
        (
            {"question": "q", "Options": ["x", "y"], "Choices": ["x", "y"], "answer": "A"},
            {},
            'both "Choices" and "Options" could be the choices; rename or remove one',
        ),
        (
            {"question": "Q?", "answer": "a"},
            {"answer_field": "solution"},
            'no field "solution" among question, answer; name one: --answer-field NAME',
        ),
        (
            {"question": "Q?", "A": "4", "B": None, "C": "9", "answer": "C"},
            {},
            '"B" is null; write a text that is not empty',
        ),
        (
            {"question": "Q?", "answer": "of a model", "ground_truth": "a"},
            {},
            'both "answer" and "ground_truth" could be the answer; choose one: '
            "--answer-field ground_truth",
        ),
        (
            {"question": "Q?", "label": 1},
            {},
            '"label" is 1, which may stand for a choice or class; write texts, add the '
            "choices, or say that it is meant: --answer-field label",
        ),
        (
            {"problem": "Q?", "level": "Level 5", "solution": "\\boxed{7}"},
            {},
            '"answers" is missing among the fields problem, level, solution; name the field with '
            "the answer: --answer-field solution",
        ),
        ({"Question": "Q?"}, {}, '"answers" is missing or empty; add it'),
        ({"Q": "Q?"}, {"question_field": "Q"}, '"answers" is missing or empty; add it'),
        ({"Question": "Q?", "Gold": None, "page": 7}, {}, '"Gold" is missing or empty; add it'),
        (
            {"question": "Q?", "key": None, "page": 7},
            {"answer_field": "key"},
            '"key" is missing or empty; add it',
        ),
        (
            {"question": "Q?", "answer": float("nan")},
            {},
            '"answer" is missing or empty; add it',
        ),
        (
            {"question": "Q?", "choices": {"text": ["4", "7"], "label": ["A", "B", "C"]}},
            {},
            '"choices" has 3 labels for 2 choices; give one each',
        ),
        (
            {"question": "Q?", "choices": {"text": ["4", "7"], "label": 3}, "answer": "4"},
            {},
            '"choices" has 1 label for 2 choices; give one each',
        ),
    ],
)
def test_columns_that_leave_a_doubt_are_named(
    fields: dict[str, Any], data: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError) as caught:
        one(fields, **data)
    assert str(caught.value) == f"own.jsonl:1: {message}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'question,answer\n"A?,a\n',
            ":2: not CSV: unexpected end of data; close each double quote",
        ),
        ("question,answer\nA?,a,b\n", ":2: 3 cells under 2 column names; put a text that holds"),
        ("question,answer,answer\nA?,a,b\n", ':1: two columns are named "answer"; rename or'),
        ("question,answer\nA?\n", ':2: "answer" is missing or empty; add it'),
        (
            "A?,a\nB?,b\n",
            '.csv:1 (column names): none of "A?, a" is the name of a question or an answer; if '
            "this is a row, add a line of names above it: question,answer; if not, name the",
        ),
        ("question,answer\nWo?,da\nWh\xe9?,a\n", ":3: byte 3 of the line is not UTF-8"),
    ],
)
def test_a_bad_table_is_named_with_its_line(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "own.csv"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError) as caught:
        questions(file)
    assert str(caught.value).startswith(str(file)) and message in str(caught.value)


FAMILIES: list[tuple[dict[str, Any], list[Any]]] = [
    ({"opa": "x", "opb": "y", "opc": "z"}, [0, 1, 2]),
    ({"opa": "x", "opb": "y", "opc": "z"}, [1, 2, 3]),
    ({"answerA": "x", "answerB": "y", "answerC": "z"}, ["1", "2", "3"]),
    ({"Answer A": "x", "Answer B": "y", "Answer C": "z"}, ["A", "b", "(C)"]),
    ({"ans0": "x", "ans1": "y", "ans2": "z"}, [0, 1, 2]),
    ({"choice1": "x", "choice2": "y", "choice3": "z"}, ["choice1", "choice2", "choice3"]),
    ({"option_1": "x", "option_2": "y", "option_3": "z"}, ["x", "y", "z"]),
    ({"sol1": "x", "sol2": "y", "sol3": "z"}, [1.0, 2.0, 3.0]),
    ({"endings": ["x", "y", "z"]}, ["0", "1", "2"]),
    ({"choices": ["x", "y", "z"]}, [1, 2, 3]),
    (
        {"choices": [{"label": n, "text": t} for n, t in zip("ABC", "xyz", strict=True)]},
        list("ABC"),
    ),
    ({"choices": {"label": ["1", "2", "3"], "text": ["x", "y", "z"]}}, ["1", "2", "3"]),
]


@pytest.mark.parametrize(("options", "answers"), FAMILIES)
@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
def test_options_are_read_however_their_columns_are_named(
    ending: str, options: dict[str, Any], answers: list[Any], tmp_path: Path
) -> None:
    rows = [{"question": f"{n}?", **options, "label": answers[n % 3]} for n in range(6)]
    found = questions(write(tmp_path, ending, rows))
    assert [(q.choices, *q.answers) for q in found] == [
        (("x", "y", "z"), "ABC"[n % 3]) for n in range(6)
    ]


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([1, 2, 1], ':1: "cop" 1 may count from 0 or from 1, and no row tells which; write its'),
        ([0, 3, 1], r":1 counts the choices from 0 and .*own\.jsonl:2 from 1; write letters: A, B"),
        ([0, 7, 1], ':2: "cop" 7 is none of the choices; write its letter A-C or its text'),
        (["x", "D", "y"], ":2: \"cop\" 'D' is none of the choices"),
    ],
)
def test_a_number_that_may_mean_two_options_is_refused(
    answers: list[Any], message: str, tmp_path: Path
) -> None:
    rows = [
        {"question": f"{n}?", "opa": "x", "opb": "y", "opc": "z", "cop": a}
        for n, a in enumerate(answers)
    ]
    with pytest.raises(DataError, match=message):
        questions(write(tmp_path, "jsonl", rows))
    rows = [row | {"cop": "C"} for row in rows]  # as the message says
    assert {q.answers for q in questions(write(tmp_path, "jsonl", rows))} == {("C",)}


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize(
    ("rows", "letters"),
    [  # choices that are numbers, and a number as the answer
        ([(["0", "4", "2", "6"], 2), (["8", "2", "24"], 2), (["w", "x", "y"], 0)], "CCA"),  # MMLU
        ([(["8", "1", "24"], 1), (["w", "x", "y"], 3)], "AC"),
        ([(["1", "2", "3", "4"], 4), (["1", "2", "3", "4"], 1)], "DA"),
        ([(["1.0", "2.0", "4.0"], "4"), (["4.0", "2.0", "1.0"], "4.0")], "CA"),  # from Excel
    ],
)
def test_a_number_is_a_place_where_it_must_be_in_another_row(
    rows: list[tuple[list[str], Any]], letters: str, ending: str, tmp_path: Path
) -> None:
    asked = [{"question": f"{n}?", "choices": c, "answer": a} for n, (c, a) in enumerate(rows)]
    if ending == "parquet":
        asked = [row | {"answer": int(float(row["answer"]))} for row in asked]
    found = questions(write(tmp_path, ending, asked))
    assert "".join(question.answers[0] for question in found) == letters


@pytest.mark.parametrize(
    ("answers", "more"),
    [("BACA", {}), ("0101", {}), ("2130", {"meta": ["x", "y", "z", "w"]}), (["(B)", "a"], {})],
)
@pytest.mark.parametrize("ending", ["jsonl", "csv"])
def test_letters_and_numbers_without_choices_are_refused(
    ending: str, answers: Sequence[str], more: dict[str, Any], tmp_path: Path
) -> None:
    rows = [{"question": f"Q{n}?", "answer": a, **more} for n, a in enumerate(answers)]
    file = write(tmp_path, ending, rows)
    with pytest.raises(
        DataError, match=r"may stand for a choice or class; .*--answer-field answer"
    ):
        questions(file)
    assert [q.answers for q in questions(file, answer_field="answer")] == [(a,) for a in answers]
    rows.append({"question": "Q?", "answer": "Ann"})
    assert questions(write(tmp_path, ending, rows))[-1].answers == ("Ann",)


@pytest.mark.parametrize("more", [{"operands": [2, 3, 1, 0]}, {"tags": ["sum", "easy"]}, {}])
def test_small_numbers_that_no_list_of_texts_can_mean_are_answers(
    more: dict[str, Any], tmp_path: Path
) -> None:
    asked = "1) Add. 2) Halve."
    rows = [{"question": f"{asked} {n}?", "answer": n, **more} for n in range(5)]
    found = questions(write(tmp_path, "jsonl", rows))
    assert [question.answers for question in found] == [(str(n),) for n in range(5)]


def test_long_runs_of_space_in_a_question_cost_no_time() -> None:
    for text in ("Q?" + " " * 20_000 + "A. x B. y", "Q?\nanswer" + " " * 20_000 + "A. x B. y"):
        started = time.perf_counter()
        assert parse(Row("own:1", {"question": text, "answer": "B"})).choices == ("x", "y")
        assert time.perf_counter() - started < 0.5


@pytest.mark.parametrize(("answers", "kind"), [("YN", "yes_no"), ("TF", "yes_no"), ("NO", "open")])
def test_letters_are_yes_and_no_where_all_answers_are(
    answers: str, kind: str, tmp_path: Path
) -> None:
    rows = [{"question": f"{n}?", "answer": answer} for n, answer in enumerate(answers)]
    found = questions(write(tmp_path, "csv", rows))
    assert {kind_of(question.answers) for question in found} == {kind}


@pytest.mark.parametrize(
    ("about", "shown"),
    [
        ({"passage": "It is so."}, "It is so."),
        ({"flores_passage": "这是。"}, "这是。"),
        ({"Body": "It is so."}, "It is so."),  # SVAMP
        ({"contexts": ["It is so.", "It was."]}, "It is so.\nIt was."),
        ({"context": {"contexts": ["It is so."], "labels": ["X"]}}, "It is so."),  # PubMedQA
        ({"context": {"title": ["T"], "sentences": [["It is so."]]}}, "It is so."),  # HotpotQA
        ({"context": [["T", ["It is so."]]]}, "T\nIt is so."),  # the same, as published
        ({"paragraphs": [{"idx": 0, "paragraph_text": "It is so."}]}, "It is so."),  # MuSiQue
        ({"context": "It is so.", "source_article": "report.pdf"}, "It is so."),
        ({"context": "weather"}, ""),
        ({"history": "It is so.", "particle": "It is so."}, ""),
        ({"passage": None, "story": 7, "document": "It is so.", "chat_history": "It is so."}, ""),
    ],
    ids=str,
)
def test_what_a_question_is_about_stands_above_it(
    about: dict[str, Any], shown: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    row = {**about, "question": "Is it?", "answer": "yes"}
    (found,) = questions(write(tmp_path, "jsonl", [row]))
    assert found.text == (f"{shown}\n\nIs it?" if shown else "Is it?")
    assert ("question in question, below" in caplog.text) is bool(shown)
    (answered,) = read_answers([row | {"response": "yes"}])
    assert answered.asked == found.text
    assert one(row | {"question": f"{shown} Is it?"}).text == f"{shown} Is it?".strip()


def test_questions_about_one_passage_are_a_group_unless_one_is_named() -> None:
    row = {"passage": "It is so.", "answer": "yes"}
    first, second, other = (
        one(row | more)
        for more in (
            {"question": "1?"},
            {"question": "2?"},
            {"question": "1?", "passage": "It was so."},
        )
    )
    assert first.group == second.group != other.group
    assert one(row | {"question": "1?", "group": "g"}).group == "g"


def test_of_more_than_ten_choices_it_is_said_that_ten_are_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    row = {"question": "?", "correct_answer": "w", "incorrect_answers": [*"abcdefghijkl"]}
    (found,) = questions(write(tmp_path, "jsonl", [row]))
    assert len(found.choices) == 10 and "w" in found.choices
    assert "of more than 10 choices the right one and nine are kept" in caplog.text


WRONG: list[dict[str, Any]] = [
    {"correct_answer": "w", "distractor1": "x", "distractor2": "y", "distractor3": "z"},
    {
        "Correct Answer": "w",
        "Incorrect Answer 1": "x",
        "Incorrect Answer 2": "y",
        "Incorrect Answer 3": "z",
    },
    {"correct_answer": "w", "incorrect_answers": ["x", "y", "z"]},
    {"answer": "w", "distractors": ["x", "y", "z"]},
]


@pytest.mark.parametrize("fields", WRONG)
@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
def test_the_right_option_is_mixed_among_the_wrong_ones(
    ending: str, fields: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    answer = next(iter(fields))
    rows = [{"Question": f"{n}?"} | fields | {answer: f"w{n}"} for n in range(40)]
    found = questions(write(tmp_path, ending, rows))
    assert {q.answers for q in found} == {("A",), ("B",), ("C",), ("D",)}
    right = [q.choices["ABCD".index(q.answers[0])] for q in found]
    assert right == [f"w{n}" for n in range(40)]
    assert all(
        sorted(q.choices) == sorted([w, "x", "y", "z"]) for q, w in zip(found, right, strict=True)
    )
    assert "wrong choices in" in caplog.messages[0]


def squad(name: str) -> dict[str, Any]:
    return {"question": name, "id": name, "answers": [{"text": "x", "answer_start": 3}]}


PAIR = [("1?", ("x",), ()), ("2?", ("y",), ())]
OBJECTS = [{"text": "x", "label": "A"}, {"text": "y", "label": "B"}]
PUBLISHED: dict[str, tuple[Any, list[tuple[str, tuple[str, ...], tuple[str, ...]]]]] = {
    "SQuAD": (
        {
            "version": "v2.0",
            "data": [
                {
                    "title": "T",
                    "paragraphs": [
                        {"context": "See c.", "qas": [squad("0?"), squad("1?")]},
                        {"context": "See d.", "qas": [squad("2?")]},
                    ],
                }
            ],
        },
        [(f"See {of}.\n\n{n}?", ("x",), ()) for n, of in enumerate("ccd")],
    ),
    "TriviaQA": (
        {
            "Data": [
                {
                    "Question": "Q?",
                    "Answer": {"Value": "x", "Aliases": ["x", "y"], "Type": "T"},
                    "SearchResults": [{"Title": "t"}],
                }
            ],
            "Version": 1.0,
        },
        [("Q?", ("x", "y"), ())],
    ),
    "raw ARC": (
        [{"id": "i", "question": {"stem": "Q?", "choices": OBJECTS}, "answerKey": "B"}],
        [("Q?", ("B",), ("x", "y"))],
    ),
    "list": ([{"question": "1?", "answer": "x"}, {"question": "2?", "answer": "y"}], PAIR),
    "pandas": ({"question": {"0": "1?", "1": "2?"}, "answer": {"0": "x", "1": "y"}}, PAIR),
    "columns": ({"question": ["1?", "2?"], "answer": ["x", "y"]}, PAIR),
    "names": (
        {"p1": {"passage": "p", "qa_pairs": [{"question": "Q?", "answer": {"spans": ["x"]}}]}},
        [("Q?", ("x",), ())],
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("indent", [None, 2])
def test_files_are_read_as_they_are_published(
    name: str, indent: int | None, tmp_path: Path
) -> None:
    document, expected = PUBLISHED[name]
    file = tmp_path / "own.json"
    file.write_text(json.dumps(document, indent=indent), encoding="utf-8-sig")
    assert [(q.text, q.answers, q.choices) for q in questions(file)] == expected
    assert [row.where for row in read_rows(file, 1, 2)] == [f"{file} row 1"] * (len(expected) > 1)


def test_a_document_of_one_row_is_read_and_one_without_rows_is_told_so(tmp_path: Path) -> None:
    file = tmp_path / "own.json"
    file.write_text(json.dumps({"question": "Q?", "answer": "a"}, indent=2), encoding="utf-8")
    assert [(q.text, q.answers) for q in questions(file)] == [("Q?", ("a",))]
    file.write_text(json.dumps({"score": 0.5, "convos": [[{"role": "user"}]]}, indent=2))
    with pytest.raises(DataError, match="is JSON without rows that have a"):
        questions(file)


def test_a_first_line_that_is_a_row_is_told_which_names_it_lacks(tmp_path: Path) -> None:
    rows = [[f"Find {n}, now.", 0, n, 2, 6, "B"] for n in range(3)]
    file = table(tmp_path / "own.csv", *rows)
    with pytest.raises(DataError, match=r"add a line of names above it: question,A,B,C,D,answer;"):
        questions(file)
    table(file, ["question", "A", "B", "C", "D", "answer"], *rows)
    assert [q.answers for q in questions(file)] == [("B",)] * 3


TEXTS = {"mc_answer1": "w", "mc_answer2": "x", "mc_answer3": "y"}
DROP: dict[str, Any] = {"number": "", "date": {"day": "", "month": "", "year": ""}, "spans": []}
DOC = {"id": "7", "question": "Q?", "choices": {"text": ["x", "y"], "label": ["A", "B"]}}
PUBLIC: dict[str, tuple[list[dict[str, Any]], list[str]]] = {  # the right texts
    "Belebele": (
        [
            {"flores_passage": "p", "question": "Q?", **TEXTS, "correct_answer_num": str(n)}
            for n in (1, 3)
        ],
        ["w", "y"],
    ),
    "DROP": (
        [
            {"passage": "p", "question": f"{n}?", "answers_spans": {"spans": [n], "types": ["s"]}}
            for n in "xy"
        ],
        ["x", "y"],
    ),
    "DROP's own file": (
        [
            {"question": "Q?", "answer": DROP | {"number": "3"}},
            {"question": "Q?", "answer": DROP | {"date": {"day": "3", "month": "May", "year": ""}}},
            {"question": "Q?", "answer": DROP | {"spans": ["x"]}},
            {"question": "Q?", "answer": {"number": 0, "date": None, "spans": []}},
            {"question": "Q?", "answer": {"date": {"year": 1999, "day": None}, "spans": []}},
        ],
        ["3", "3 May", "x", "0", "1999"],
    ),
    "TruthfulQA": (
        [
            {"question": f"{n}?"}
            | {"mc1_targets": {"choices": [f"r{n}", *"abc"], "labels": [1, 0, 0, 0]}}
            | {"mc2_targets": {"choices": [f"r{n}", *"abc"], "labels": [1, 1, 0, 0]}}
            for n in range(12)
        ],
        [f"r{n}" for n in range(12)],
    ),
    "TruthfulQA's own file": (
        [{"question": "Q?", "mc1_targets": {"a": 0, "x": 1}, "mc2_targets": {"a": 1, "x": 1}}],
        ["x"],
    ),
    "TASKS of BIG-bench": ([{"input": "Q?", "target_scores": {"a": 0, "x": 1, "b": 0}}], ["x"]),
    "13 options": (
        [{"question": "?", "mc1_targets": {"x": 1} | {f"no {n}": 0 for n in range(12)}}],
        ["x"],
    ),
    "options with flags": (
        [{"question": "1?", "answers": [{"text": c, "is_correct": c == "x"} for c in "yxz"]}],
        ["x"],
    ),
}


@pytest.mark.parametrize("name", PUBLIC)
@pytest.mark.parametrize("ending", ["jsonl", "csv"])
def test_public_data_sets_need_no_option(name: str, ending: str, tmp_path: Path) -> None:
    rows, right = PUBLIC[name]
    found = questions(write(tmp_path, ending, [*rows, *rows]))
    letters = [q.answers[0] for q in found]
    has_options = name.startswith(("B", "T", "1", "o"))
    said = [
        q.choices["ABCDEFGHIJ".index(a)] if q.choices else a
        for q, a in zip(found, letters, strict=True)
    ]
    assert said == [*right, *right] and all(bool(q.choices) == has_options for q in found)
    if name == "TruthfulQA":  # where the first is right
        assert len({*letters}) > 2 and all(len(q.choices) == 4 for q in found)


@pytest.mark.parametrize(
    ("doc", "target", "answers"),
    [
        (DOC | {"answerKey": "B"}, "0", ("B",)),
        (DOC, "1", ("B",)),
        ({"question": "Q?", "answer": "So.\n#### 5"}, "#### 5", ("5",)),
        ({"input": "Q?"}, "Paris", ("Paris",)),
    ],
)
def test_samples_of_lm_evaluation_harness_are_questions(
    doc: dict[str, Any], target: str, answers: tuple[str, ...], tmp_path: Path
) -> None:
    row = {"doc_id": 0, "doc": doc, "target": target, "resps": [["5"]], "acc": 1.0, "filter": "x"}
    other = row | {"target": "0"}
    first, *_ = questions(write(tmp_path, "jsonl", [row, row, other]))
    assert (first.text, first.answers) == ("Q?", answers)


HINTED: list[dict[str, Any]] = [
    {"question": "Q?", "best_answer": "x", "correct_answers": ["x", "y"], "source": "z"},
    {"question": "Q?", "mc2_targets": {"x": 1, "y": 1}, "ideal": "x"},
    {"question": "Q?", "mc2_targets": {"x": 1, "y": 1}},
    {"question": "Q?", "gold_spans": {"start": 1}, "solution": "x"},
    {"question": "Q?", "options": ["x", "y", "z"], "solution": "It is.", "correct": "B"},
    {"question": "Q?", "options": ["x", "y", "z"], "gold_label": 2, "text": "t"},
    {"sentence": "Q?", "option1": "x", "option2": "y", "answer": "2"},
    {"inputs": "Q?", "targets": ["x"], "multiple_choice_targets": ["x", "y"]},
    {"input": [{"role": "user", "content": "Q?"}], "ideal": "x"},
    {"prompt": "Q?", "completion": "x"},
    {"question": "Q?", "long_answer": "It is x, since y.", "final_decision": "x"},  # PubMedQA
]


@pytest.mark.parametrize("fields", HINTED, ids=lambda fields: " ".join(fields))
def test_the_option_that_a_refusal_proposes_is_accepted(
    fields: dict[str, Any], tmp_path: Path
) -> None:
    file, given = write(tmp_path, "jsonl", [fields, fields]), dict[str, str]()
    for _ in range(3):
        try:
            assert questions(file, **given)
            return
        except DataError as error:
            found = re.search(r"--(question|answer)-field (\S+)", str(error))
            if found is None:
                break
            assert f"{found[1]}_field" not in given, error
            given[f"{found[1]}_field"] = found[2]
    assert [*fields] == ["question", "mc2_targets"]  # nothing in it can be the answer


FILES = Path(__file__).parents[3] / "shared/cases/files"


@pytest.mark.skipif(not FILES.is_dir(), reason=f"there is no folder {FILES}")
@pytest.mark.parametrize(
    ("name", "found", "data"),
    [
        ("squad.csv", '"answers" cannot be read: .*array', {}),
        ("squad_pandas.csv", 60, {}),
        ("trivia.csv", '"answer" cannot be read: .*array', {}),
        ("cell_num.csv", 3, {}),
        ("cell_num.jsonl", 3, {}),
        ("medmcqa.jsonl", 12, {}),
        ("siqa.jsonl", 12, {}),
        ("squad_official.json", 12, {}),
        ("trivia_orig1.json", 12, {}),
        ("arc_raw.jsonl", 12, {}),
        ("cqa_raw.jsonl", 12, {}),
        ("choices_objs.jsonl", 12, {}),
        ("gpqa.csv", 12, {}),
        ("gpqa.jsonl", 12, {}),
        ("truthful.csv", "--answer-field 'Best Answer'", {}),
        ("truthful.csv", 12, {"answer_field": "Best Answer"}),
        ("squad2.jsonl", 12, {}),
        ("excel_sep.csv", 12, {}),
        ("cr.csv", 12, {}),
        ("comma_in_header.csv", 12, {}),
        ("mmlu_nohead.csv", "add a line of names above it: question,A,B,C,D,answer", {}),
    ],
)
def test_the_collected_files_are_read_or_refused_with_a_remedy(
    name: str, found: int | str, data: dict[str, str]
) -> None:
    settings = DataSettings(task="jsonl", file=str(FILES / name), **data)
    if isinstance(found, str):
        with pytest.raises(DataError, match=found):
            questions(FILES / name)
        return
    rows = question_rows(FILES / name, settings)
    kept = [parse(row, settings, graded=False) for row in rows]
    assert len(kept) == found
    unanswered = {"squad2.jsonl": 1, "squad_official.json": 4}.get(name, 0)
    assert sum(not question.answers for question in kept) == unanswered
    has_options = name.startswith(("medm", "siqa", "arc_", "cqa_", "choi", "gpqa"))
    for question in kept:
        assert bool(question.choices) == has_options
        assert not has_options or question.answers[0] in "ABCD"


def test_a_folder_is_read_file_by_file(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text("question,correct\nWhat is 2?,true\n")
    (tmp_path / "a.jsonl").write_text('{"question": "What is 1?"}\n\n{"question": "What is 3?"}\n')
    (tmp_path / "notes.txt").write_text("not rows")
    asked = [row.fields["question"] for row in read_rows(tmp_path)]
    assert asked == ["What is 1?", "What is 3?", "What is 2?"]
    assert [row.fields["question"] for row in read_rows(tmp_path, 1, 2)] == ["What is 3?"]
