import os
from pathlib import Path

import pytest

from grace.errors import GraceError, RunError
from grace.records import Confidence, Grade
from grace.store import RowFile, RunDir, check_vacant, read_json, replace_directory, write_json


def rows(*ids):
    return [Confidence(name, 0.5) for name in ids]


@pytest.fixture
def table(tmp_path):
    return RowFile(tmp_path / "confidences.jsonl", Confidence)


def test_rows_come_back_as_they_were(table):
    written = [Confidence("ü#0", 0.1 + 0.2), Confidence("b#0", None)]
    table.append(written)
    assert table.read() == written


def test_resume_keeps_whole_units_only(table):
    table.append(rows("a", "b"))
    table.append(rows("c", "d"))
    table.append(rows("e"))
    assert table.resume([["a", "b"], ["c", "d"], ["e", "f"]]) == 2
    assert [row.id for row in table.read()] == ["a", "b", "c", "d"]


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_torn_last_line_is_cut_off(table, cut):
    table.append(rows("a"))
    whole = table.path.read_bytes()
    table.append(rows("b"))
    data = table.path.read_bytes()
    table.path.write_bytes(data[:-cut])
    assert table.resume([["a"], ["b"]]) == 1
    assert table.path.read_bytes() == whole


@pytest.mark.parametrize("units", [[["a"], ["b"]], [["y", "x"]]], ids=["others", "other order"])
def test_rows_of_another_plan_are_dropped(units, table):
    table.append(rows("x", "y"))
    assert table.resume(units) == 0
    assert table.read() == []


def test_rows_beyond_the_plan_are_dropped(table):
    table.append(rows("a"))
    table.append(rows("z"))
    assert table.resume([["a"]]) == 1
    assert [row.id for row in table.read()] == ["a"]


def test_reading_names_the_bad_line(table):
    table.append(rows("a"))
    with table.path.open("a") as file:
        file.write('{"id": "b"}\n')
    with pytest.raises(RunError, match=r"confidences\.jsonl:2: not a Confidence row"):
        table.read()


def test_full_disk_is_a_one_line_error(tmp_path):
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full on this system")
    (tmp_path / "full.jsonl").symlink_to("/dev/full")
    with pytest.raises(RunError, match="the disk is full while writing"):
        RowFile(tmp_path / "full.jsonl", Confidence).append(rows("a"))


def test_unwritable_folder_is_a_one_line_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write"):
        write_json(tmp_path / "file" / "x.json", {})


@pytest.mark.parametrize("place", ["/dev/null", "file", "file/in/it"])
def test_a_place_that_cannot_be_written_is_refused_before_the_work(place, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(GraceError, match=r"exists already; name a new|cannot write"):
        check_vacant(tmp_path / place)


def test_a_place_that_can_be_written_is_not_made_yet(tmp_path):
    check_vacant(tmp_path / "new" / "out")
    assert not (tmp_path / "new").exists()


def test_only_one_process_works_on_a_run(tmp_path):
    first, second = RunDir(tmp_path), RunDir(tmp_path)
    with first.lock(), pytest.raises(RunError, match="another process"), second.lock():
        pass
    with second.lock():
        pass


@pytest.mark.parametrize("read", [True, False], ids=["inputs", "outputs"])
def test_a_manifest_marks_a_stage_as_done_and_notices_changes(read, tmp_path):
    run = RunDir(tmp_path)
    grades = run.split("test").grades
    grades.write([Grade("a#0", "a", True, "x")])
    assert not run.done("grade")
    run.finish("grade", {"threshold": 0.3}, [grades.path] * read, [grades.path] * (not read))
    assert run.changed_files("grade") == []
    grades.write([Grade("a#0", "a", False, "x")])
    assert run.changed_files("grade") == ["test/grades.jsonl"]


def test_forgetting_a_stage_removes_what_it_wrote_finished_or_not(tmp_path):
    run = RunDir(tmp_path)
    grades = run.split("test").grades
    grades.write([Grade("a#0", "a", True, "x")])
    run.add_time("grade", "train/0", 1.0, 1)
    run.add_time("sample", "test/0", 2.0, 1)
    run.finish("grade", {}, [], [grades.path])
    (tmp_path / "test" / "grades.jsonl.partial").write_text("torn")
    (tmp_path / "checkpoints" / "checkpoint-1").mkdir(parents=True)
    (tmp_path / "checkpoints" / "checkpoint-1" / "x").write_text("")
    run.forget("grade", ["*/grades.jsonl*", "checkpoints"])
    assert not run.done("grade")
    assert run.seconds_per_answer(run.split("train")) is None
    assert run.seconds_per_answer(run.split("test")) == 2.0
    files = [str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()]
    assert files == ["stages/sample.timing.jsonl"]


@pytest.mark.parametrize(
    "line", [b"[]", b"\xff\xfe", b'{"unit": 3}', b'{"unit": "test/1", "seconds": []}', b"{"]
)
def test_a_damaged_line_of_times_is_left_out(line, tmp_path):
    run = RunDir(tmp_path)
    run.add_time("sample", "test/0", 2.0, 1)
    with (tmp_path / "stages" / "sample.timing.jsonl").open("ab") as file:
        file.write(line + b"\n")
    assert run.seconds_per_answer(run.split("test")) == 2.0


@pytest.mark.parametrize(
    "change", [{"tau": "0.5"}, {"tau": -1}, {"temperature": "a"}, {"drop": 0.3}, {"budget": []}]
)
def test_a_damaged_threshold_is_refused(change, tmp_path):
    run = RunDir(tmp_path)
    chosen = {"mode": "answer", "budget": 1, "temperature": 0.0, "target": 0.9, "delta": 0.05}
    chosen |= {"tau": None, "n": 10, "bound": 0.9, "promise": "told"}
    write_json(run.threshold, chosen | {"drop": 0.0, "alpha": None})  # as earlier versions did
    assert run.chosen_threshold().tau is None
    write_json(run.threshold, chosen | change)
    with pytest.raises(RunError, match=r"is not a threshold .*choose again: grace threshold"):
        run.chosen_threshold()


def test_times_of_a_repeated_unit_count_once(tmp_path):
    run = RunDir(tmp_path)
    run.add_time("sample", "test/0", 9.0, 2)
    run.add_time("sample", "test/0", 2.0, 2)
    run.add_time("sample", "test/1", 4.0, 2)
    run.add_time("score", "tuned/0", 100.0, 1)
    assert run.seconds_per_answer(run.split("test")) == pytest.approx(6.0 / 4)
    assert run.seconds_per_answer(run.split("train")) is None


def test_json_is_replaced_whole(tmp_path):
    path = tmp_path / "a" / "b.json"
    write_json(path, {"x": 1})
    write_json(path, {"x": "ü"})
    assert read_json(path) == {"x": "ü"}
    assert [p.name for p in path.parent.iterdir()] == ["b.json"]
    path.write_text("{")
    with pytest.raises(RunError, match="cannot be read"):
        read_json(path)


def test_a_directory_that_is_linked_to_is_filled_where_it_is(tmp_path: Path):
    disk, link = tmp_path / "disk", tmp_path / "link"
    disk.mkdir()
    link.symlink_to(disk)
    replace_directory(link, lambda partial: (partial / "file").touch())
    assert link.is_symlink() and (disk / "file").is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["disk", "link"]


def test_a_directory_that_cannot_be_filled_stays_as_it_was(tmp_path: Path):
    def fill(partial: Path) -> None:
        (partial / "file").write_text("half")
        raise RuntimeError

    for place in (tmp_path / "new", tmp_path / "old"):
        if place.name == "old":
            replace_directory(place, lambda partial: (partial / "file").write_text("whole"))
        with pytest.raises(RuntimeError):
            replace_directory(place, fill)
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert (tmp_path / "old" / "file").read_text() == "whole"
