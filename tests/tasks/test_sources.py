"""Where rows come from, and how three disjoint splits are drawn from them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from grace.answers import normalise
from grace.config import DataSettings
from grace.errors import DataError
from grace.records import Question
from grace.tasks import load_task, qa_wikidata
from grace.tasks import rows as rows_module
from grace.tasks.draw import content_id, disjoint
from grace.tasks.math_qa import parse_options
from grace.tasks.rows import Row

DATA = Path(__file__).parents[1] / "data"


def sciq_row(number: int) -> dict[str, Any]:
    return {"question": f"What is number {number}?", "correct_answer": f"thing {number}"}


def write(folder: Path, **splits: Iterable[dict[str, Any]]) -> str:
    """Write SPLIT.jsonl files of the task sciq; return what `data.dir` has to be."""
    (folder / "sciq").mkdir(parents=True, exist_ok=True)
    for split, rows in splits.items():
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "sciq" / f"{split}.jsonl").write_text(text, encoding="utf-8")
    return str(folder)


def numbers(questions: list[Question]) -> set[int]:
    return {int(question.answers[0].split()[1]) for question in questions}


def settings(folder: str, train: int = 3, validation: int = 2, test: int = 2) -> DataSettings:
    return DataSettings(task="sciq", dir=folder, train=train, validation=validation, test=test)


def test_a_folder_with_three_files_gives_three_splits(tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        train=map(sciq_row, range(9)),
        validation=map(sciq_row, range(10, 19)),
        test=map(sciq_row, range(20, 29)),
    )
    task = load_task("sciq")
    assert numbers(task.questions("train", settings(folder), 0)) < set(range(9))
    assert numbers(task.questions("validation", settings(folder), 0)) < set(range(10, 19))
    assert numbers(task.questions("test", settings(folder), 0)) < set(range(20, 29))


def test_wikidata_beginnings_come_in_the_hubs_fields_or_in_ones_own() -> None:
    hub = {"inputs": "Q: The country of Vilnius is\nA:", "targets": ["Lithuania", " "]}
    own = {"id": "wd-1", "question": "The country of Vilnius is ", "answers": ["Lithuania"]}
    from_hub, from_file = (qa_wikidata.parse(Row("here", fields)) for fields in (hub, own))
    assert from_hub.text == from_file.text == "The country of Vilnius is"
    assert from_hub.answers == from_file.answers == ("Lithuania",)
    assert from_file.id == "wd-1" and from_hub.id.startswith("qa_wikidata-")


def test_without_a_test_file_validation_is_the_test_split(tmp_path: Path) -> None:
    folder = write(tmp_path, train=map(sciq_row, range(5)), validation=map(sciq_row, (10, 11)))
    task = load_task("sciq")
    train = numbers(task.questions("train", settings(folder), 0))
    validation = numbers(task.questions("validation", settings(folder), 0))
    assert train | validation == set(range(5)) and not train & validation
    assert numbers(task.questions("test", settings(folder), 0)) == {10, 11}


def test_without_a_validation_file_it_is_held_out_of_train(tmp_path: Path) -> None:
    folder = write(tmp_path, train=map(sciq_row, range(5)), test=map(sciq_row, (10, 11)))
    task = load_task("sciq")
    train = numbers(task.questions("train", settings(folder), 0))
    validation = numbers(task.questions("validation", settings(folder), 0))
    assert train | validation == set(range(5)) and not train & validation
    with pytest.raises(DataError, match=r"5 questions for train and validation together.* 4 \+ 2"):
        task.questions("train", settings(folder, train=4), 0)


def test_stand_ins_made_from_dev_serve_when_train_is_missing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write(
        tmp_path,
        train_from_dev=map(sciq_row, range(5)),
        validation_from_dev=map(sciq_row, (5, 6)),
        validation=map(sciq_row, range(7)),
        test=map(sciq_row, (10, 11)),
    )
    task = load_task("sciq")
    with caplog.at_level(logging.WARNING, logger="grace.tasks"):
        assert numbers(task.questions("train", settings(folder), 0)) < set(range(5))
        assert numbers(task.questions("validation", settings(folder), 0)) == {5, 6}
    assert caplog.text.count("has no train.jsonl; training on train_from_dev.jsonl") == 1


def test_a_test_question_never_trains_however_it_is_written(tmp_path: Path) -> None:
    leak = {"question": "  what is NUMBER 10 ", "correct_answer": "thing 10"}
    folder = write(
        tmp_path,
        train=[leak, *map(sciq_row, range(3)), sciq_row(20)],
        validation=[sciq_row(20), sciq_row(21), sciq_row(10)],
        test=map(sciq_row, (10, 11)),
    )
    task = load_task("sciq")
    assert numbers(task.questions("train", settings(folder), 0)) == {0, 1, 2}
    assert numbers(task.questions("validation", settings(folder), 0)) == {20, 21}


def test_another_seed_draws_others_and_a_smaller_draw_is_part_of_a_larger(tmp_path: Path) -> None:
    folder = write(tmp_path, train=map(sciq_row, range(99)), test=map(sciq_row, range(100, 199)))
    task = load_task("sciq")
    small, large = settings(folder, test=10), settings(folder, test=20)
    assert task.questions("test", small, 0) == task.questions("test", large, 0)[:10]
    for split in ("train", "validation", "test"):
        data = settings(folder, train=10, validation=10, test=10)
        assert numbers(task.questions(split, data, 0)) != numbers(task.questions(split, data, 1))  # type: ignore[arg-type]


def test_a_row_that_lacks_a_field_is_named_with_its_line(tmp_path: Path) -> None:
    folder = write(tmp_path, train=[sciq_row(0)], test=[sciq_row(1), {"question": "Why?"}])
    with pytest.raises(DataError, match=r"test\.jsonl:2: not a row of sciq: no field 'correct_an"):
        load_task("sciq").questions("test", settings(folder), 0)


def test_a_folder_that_cannot_serve_says_what_it_lacks(tmp_path: Path) -> None:
    task = load_task("sciq")
    cases = {
        str(tmp_path / "nowhere"): "there is no folder",
        write(tmp_path / "a"): r"has no train\.jsonl; found: no \.jsonl files",
        write(tmp_path / "b", train=[sciq_row(0)]): r"has no test\.jsonl or validation\.jsonl",
        write(tmp_path / "c", test=[sciq_row(0)]): r"has no train\.jsonl; found: test",
    }
    for folder, message in cases.items():
        with pytest.raises(DataError, match=message):
            task.questions("train", settings(folder), 0)


@pytest.mark.parametrize(
    ("name", "path", "config", "splits"),
    [
        ("trivia_qa", "mandarjoshi/trivia_qa", "rc.nocontext", ["validation", "train"]),
        ("sciq", "allenai/sciq", None, ["test", "validation", "train"]),
        ("arc_challenge", "allenai/ai2_arc", "ARC-Challenge", ["test", "validation", "train"]),
        ("math_qa", "regisss/math_qa", None, ["test", "validation", "train"]),
    ],
)
def test_the_hub_is_asked_for_the_right_sets(
    monkeypatch: pytest.MonkeyPatch, name: str, path: str, config: str | None, splits: list[str]
) -> None:
    import datasets

    rows = json.loads((DATA / "hub_rows.json").read_text("utf-8"))[path]
    asked: list[tuple[Any, ...]] = []

    def load_dataset(path: str, config: str | None, split: str) -> list[dict[str, Any]]:
        asked.append((path, config, split))
        return list(rows[split])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    data = DataSettings(task=name, train=1, validation=1, test=1)
    load_task(name).questions("train", data, 0)
    assert asked == [(path, config, split) for split in splits]


def test_trivia_qa_accepts_every_alias_once_with_the_value_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = json.loads((DATA / "hub_rows.json").read_text("utf-8"))["mandarjoshi/trivia_qa"]
    monkeypatch.setattr(rows_module, "load_from_hub", lambda path, config, split, name: rows[split])
    data = DataSettings(task="trivia_qa", train=2, validation=1, test=2)
    task = load_task("trivia_qa")
    by_id = {q.id: q for split in ("train", "validation") for q in task.questions(split, data, 0)}  # type: ignore[arg-type]
    assert set(by_id) == {"t1", "t2", "t3"}
    assert by_id["t1"].answers == ("Crow", "A crow", "Rook", "crow", "rook")


def test_an_answer_that_is_a_text_is_one_answer_and_none_at_all_is_refused(tmp_path: Path) -> None:
    rows = [{"question": f"The country of town {n} is", "answers": "Lithuania"} for n in range(4)]
    write(tmp_path, train=rows, test=rows[:1])
    (tmp_path / "sciq").rename(tmp_path / "qa_wikidata")
    data = DataSettings(task="qa_wikidata", dir=str(tmp_path), test=1)
    (question,) = load_task("qa_wikidata").questions("test", data, 0)
    assert question.answers == ("Lithuania",)
    (tmp_path / "qa_wikidata" / "test.jsonl").write_text('{"question": "Q", "answers": [" "]}\n')
    with pytest.raises(DataError, match=r"test\.jsonl:1: .* no accepted answer"):
        load_task("qa_wikidata").questions("test", data, 0)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("a ) 38 , b ) 27.675 , c ) 30", ("38", "27.675", "30")),
        ("a ) 1,000 , b ) rs . 10,500 , c ) 3", ("1,000", "rs . 10,500", "3")),
        ("a ) x , y and z , b ) a , b and c", ("x , y and z", "a , b and c")),
        ("['a ) 4', 'b ) 4 π', 'c ) 16']", ("4", "4 π", "16")),
        ("a)1,b)2", ("1", "2")),
        ("a ) 1 , b ) , c ) 3", ("1", "", "3")),
        ("a ) ( 1 , 2 ) , b ) ( 3 , b )", ("( 1 , 2 )", "( 3 , b )")),
        ("38 , 40", ()),
        ("", ()),
    ],
)
def test_math_qa_options_are_parsed(options: str, expected: tuple[str, ...]) -> None:
    assert parse_options(options) == expected


def test_math_qa_rows_whose_options_cannot_be_told_apart_are_left_out_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pairs = [("a ) 1 , b ) 2", "b"), ("38 , 40", "a"), ("a ) 38", "a"), ("a ) 1 , b ) 2", "c")]
    rows = [{"Problem": f"{n} ?", "options": o, "correct": c} for n, (o, c) in enumerate(pairs)]
    write(tmp_path, train=rows, test=rows)
    (tmp_path / "sciq").rename(tmp_path / "math_qa")
    data = DataSettings(task="math_qa", dir=str(tmp_path), test=1)
    (question,) = load_task("math_qa").questions("test", data, 0)
    assert (question.text, question.answers) == ("0 ?", ("B",))
    assert "math_qa: 3 of 4 rows cannot be used" in caplog.text


def test_repeats_are_dropped_by_text_and_options_in_any_order() -> None:
    def question(name: str, text: str, *choices: str) -> Question:
        return Question(name, "t", text, ("A",), choices)

    test = [question("1", "Which?", "a", "b"), question("2", "which", "c", "d")]
    train = [question("3", "WHICH", "e", "f"), question("4", "Why?"), question("4", "Who?")]
    leaked = question("6", "WHICH", "B", "a")
    kept = disjoint([[*test, question("5", "Which", "A", "B")], [leaked, *train]])
    assert [[q.id for q in pool] for pool in kept] == [["1", "2"], ["3", "4"]]


@pytest.mark.parametrize(
    "texts",
    [
        ["What is 7 + 5?", "What is 7 - 5?", "What is 7 * 5?", "What is 7 / 5?", "What is 7^5?"],
        ["Who designed C?", "Who designed C++?", "Who designed C#?"],
        ["What is (2 + 3) * 4?", "What is 2 + (3 * 4)?"],
        ["What is half of 3.5?", "What is half of 3:5?", "What is half of 3 5?"],
        ["Solve x^2 - 4 = 0", "Solve x^2 + 4 = 0", "Solve x^2 = -4", "Solve x^2 = 4"],
    ],
)
def test_questions_that_differ_by_a_sign_are_different(texts: list[str]) -> None:
    pool = [Question(str(n), "t", text, ("a",)) for n, text in enumerate(texts)]
    assert disjoint([pool]) == [pool]
    assert len({content_id("x", text) for text in texts}) == len(texts)
    assert disjoint([pool[:1], [Question("9", "t", texts[0].lower().rstrip("?"), ("a",))]])[1] == []


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("trivia_qa", (8325, 500, 11310)),
        ("sciq", (11577, 1000, 1000)),
        ("arc_challenge", (1012, 100, 1172)),
        ("math_qa", (3951, 500, 2985)),
    ],
)
def test_every_row_of_the_real_files_is_read(
    shared: Path, name: str, sizes: tuple[int, int, int]
) -> None:
    train, validation, test = sizes
    data = DataSettings(
        task=name, dir=str(shared / "datasets"), train=train, validation=validation, test=test
    )
    drawn = [load_task(name).questions(split, data, 0) for split in ("train", "validation", "test")]  # type: ignore[arg-type]
    assert [len(questions) for questions in drawn] == list(sizes)
    texts = [{normalise(question.text) for question in questions} for questions in drawn]
    assert len(set.union(*texts)) == sum(map(len, texts))
    assert len({question.id for questions in drawn for question in questions}) == sum(sizes)
