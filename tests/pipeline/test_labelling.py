"""Labelling: the rows of the engine itself, and nothing lost or made twice whatever is killed."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import labelling_trials as trials
import numpy as np
import pytest
import trials as processes

import fake_upstream
import fake_vllm
import forks
import tiny_run
from grace.chat import encode_chat
from grace.cli import main
from grace.config import DataSettings
from grace.engines import Sampling
from grace.engines.transformers import TransformersEngine
from grace.errors import ConfigError, DataError, ModelError, RunError
from grace.export import export_model
from grace.grading import load_grader
from grace.pipeline import labelling
from grace.pipeline.labelling import (
    RECORD,
    Labeller,
    Labelling,
    count_questions,
    label,
    read_questions,
    shard_path,
)
from grace.records import Question
from grace.store.files import locked
from grace.tasks import load_task
from made_up_response import said

DATA = DataSettings(task="jsonl")
ONE = {"sample.test_samples": 1}
GREEDY = ONE | {"sample.test_temperature": 0.0}
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")


@pytest.fixture
def run(finished: Path) -> Path:
    return finished / "run"


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    return trials.write_questions(tmp_path / "questions.parquet")


def files(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(out.glob("part-*"))}


def test_the_rows_are_what_the_engine_says_and_the_grader_finds(
    run: Path, questions: Path, tmp_path: Path
) -> None:
    settings = trials.settings(run, features=("mean", "last"))
    done = label(questions, tmp_path / "out", settings)
    assert done[:5] == (24, 72, 5, 5, 0)
    found = trials.rows(tmp_path / "out")
    assert [row["id"] for row in found] == [f"q{n}#{k}" for n in range(24) for k in range(3)]
    engine = TransformersEngine.load(run.parent / "model", adapter=run / "adapter")
    task, sampling = load_task("jsonl"), Sampling(3, 0.8, 1.0, 12)
    for number in (0, 5, 23):  # of the first shard, the second and the last
        asked = Question(
            f"q{number}", "jsonl", f"What is {number} and {number * 7}?", (f"{number}",)
        )
        prompt = encode_chat(engine.tokenizer, task.messages(asked, settings.settings.data))
        ((_, made),) = engine.generate([prompt], sampling, keys=[asked.id])
        states = engine.features([prompt] * 3, [g.token_ids for g in made])
        for k, generation in enumerate(made):
            row = found[3 * number + k]
            assert tuple(row["token_ids"]) == generation.token_ids
            assert (row["text"], row["finish_reason"]) == (
                generation.text,
                generation.finish_reason,
            )
            assert row["confidence"] == pytest.approx(generation.confidence, abs=1e-5)
            assert row["logprobs"] == pytest.approx(generation.logprobs, abs=1e-4)
            assert row["correct"] == tiny_run.coin(generation.text, asked)
            assert row["answer"] == task.answer(generation.text)
            np.testing.assert_allclose(row["mean"], states.mean_ND[k], rtol=2e-3, atol=2e-3)
            np.testing.assert_allclose(row["last"], states.last_ND[k], rtol=2e-3, atol=2e-3)


def test_a_letter_that_no_option_has_is_no_answer() -> None:
    labeller = object.__new__(Labeller)
    labeller._task, labeller._grade = load_task("jsonl"), load_grader("auto")
    asked = [Question("q", "jsonl", "Which?", ("B",), ("x", "y", "z")[:n]) for n in (2, 3)]
    response = said("Answer: C", id="q#0", question_id="q")
    assert [labeller._row(one, response)["answer"] for one in asked] == [None, "C"]


def test_done_shards_are_kept_and_missing_ones_are_made_again_byte_for_byte(
    run: Path, questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, out = trials.settings(run, features=("mean",)), tmp_path / "out"
    label(questions, out, settings)
    monkeypatch.setattr(Labeller, "check_lengths", None)  # all were checked before the first
    whole = files(out)
    kept = (out / "part-00002.parquet").stat().st_mtime_ns
    (out / "part-00000.parquet").unlink()
    (out / "part-00004.parquet").unlink()
    (out / ".part-00004.parquet.partial").write_bytes(b"torn")
    assert label(questions, out, settings).made == 2
    assert files(out) == whole
    assert (out / "part-00002.parquet").stat().st_mtime_ns == kept
    assert not list(out.glob(".part*"))


def test_what_is_done_needs_no_model(
    run: Path, questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    label(questions, tmp_path / "out", trials.settings(run))
    monkeypatch.setattr(labelling, "Labeller", None)
    assert label(questions, tmp_path / "out", trials.settings(run)).made == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sample.test_samples": 4}, r"sample.test_samples \(1 -> 4\)"),
        ({"sample.test_temperature": 1.0}, "test_temperature"),
        ({"seed": 1}, "seed"),
    ],
)
def test_other_settings_are_refused_where_shards_exist(
    changes: dict[str, Any], words: str, run: Path, questions: Path, tmp_path: Path
) -> None:
    def given(changes: dict[str, Any], **own: Any) -> Labelling:
        return trials.settings(run, ONE | changes, **{"shard_size": 24, **own})

    label(questions, tmp_path / "out", given({}))
    with pytest.raises(RunError, match=words):
        label(questions, tmp_path / "out", given(changes))
    with pytest.raises(RunError, match=r"shard_size \(24 -> 5\)"):
        label(questions, tmp_path / "out", given({}, shard_size=5))
    settings = given({"sample.batch_size": 1, "model.device": "cpu"})
    label(questions, tmp_path / "out", settings)
    trials.write_questions(questions, trials.QUESTIONS[:3])
    with pytest.raises(RunError, match="content"):
        label(questions, tmp_path / "out", settings)


def test_questions_without_answers_are_answered_and_not_graded(run: Path, tmp_path: Path) -> None:
    rows = [
        {"question": "Who wrote Middlemarch?", "answers": None},
        {"question": "What is 3?", "answers": ["three"]},
    ]
    questions = trials.write_questions(tmp_path / "q.parquet", rows)
    label(questions, tmp_path / "out", trials.settings(run, ONE))
    found = trials.rows(tmp_path / "out")
    assert [row["correct"] is None for row in found] == [True, False]
    asked = list(read_questions(questions, DATA, 0, 2))
    assert [q.answers for q in asked] == [(), ("three",)]
    assert [row["question_id"] for row in found] == [q.id for q in asked]


def test_choices_are_read_with_and_without_the_right_one(tmp_path: Path) -> None:
    rows = [
        {"question": "Which is a prime?", "choices": ["4", "7"], "answer": None},
        {"question": "Which is even?", "choices": ["4", "7"], "answer": "A"},
    ]
    asked = list(read_questions(trials.write_questions(tmp_path / "q.parquet", rows), DATA, 0, 2))
    assert [(q.choices, q.answers) for q in asked] == [(("4", "7"), ()), (("4", "7"), ("A",))]


def test_the_vllm_engine_labels_as_the_transformers_engine_does(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = run / "adapter"
    export_model(run, adapter, str(run.parent / "model"), tmp_path / "merged")
    fake_vllm.install(monkeypatch, make=fake_vllm.load)
    questions = trials.write_questions(tmp_path / "q.parquet", trials.QUESTIONS[:4])
    merged = GREEDY | {"model.path": str(tmp_path / "merged")}
    for engine in ("vllm", "transformers"):
        settings = trials.settings(run, merged | {"model.engine": engine}, adapter="")
        label(questions, tmp_path / engine, settings)
    found, wanted = trials.rows(tmp_path / "vllm"), trials.rows(tmp_path / "transformers")
    assert {row["confidence"] for row in wanted} != {None}
    same_rows(found, wanted)


@pytest.mark.parametrize("engine", ["vllm", "openai"])
def test_a_backbone_without_cnf_is_labelled_by_every_engine(
    engine: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone = run.parent / "model"
    fake_vllm.install(monkeypatch, make=fake_vllm.load)
    questions = trials.write_questions(tmp_path / "q.parquet", trials.QUESTIONS[:4])
    local = TransformersEngine.load(backbone)
    with fake_upstream.serving(local.model, local.tokenizer, list(local.reader.stops)) as server:
        options = [f"url={server.url}", "api_key=of-an-option"]
        there = {"model.engine_options": options} if engine == "openai" else {}
        asked = trials.settings(run, GREEDY | there | {"model.engine": engine}, adapter="")
        label(questions, tmp_path / engine, asked._replace(key="my-secret" if there else ""))
    assert "my-secret" not in (tmp_path / engine / RECORD).read_text()
    label(questions, tmp_path / "transformers", trials.settings(run, GREEDY, adapter=""))
    wanted = trials.rows(tmp_path / "transformers")
    assert {row["confidence"] for row in wanted} == {None}
    same_rows(trials.rows(tmp_path / engine), wanted)


def same_rows(found: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert one.pop("confidence") == pytest.approx(other.pop("confidence"), abs=1e-5)
        for name in ("logprobs", "end_logprob"):
            assert one.pop(name) == pytest.approx(other.pop(name), abs=1e-4)
        assert one == other


@pytest.mark.parametrize(("start", "stop"), [(0, 24), (0, 5), (5, 10), (6, 8), (20, 30), (23, 24)])
def test_a_slice_is_the_same_rows_wherever_the_row_groups_end(
    start: int, stop: int, questions: Path
) -> None:
    wanted = [row["id"] for row in trials.QUESTIONS[start:stop]]
    assert [question.id for question in read_questions(questions, DATA, start, stop)] == wanted


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (
            [{"id": "a", "question": "Q?"}, {"id": "a", "question": "R?"}],
            r"q\.parquet row 0 and .*q\.parquet row 1",
        ),
        ([{"question": "Q?"}, {"question": "Q?"}], "same id"),
        ([{"question": "Q?"}, {"question": " "}], "row 1"),
        ([{"text": "Q?"}], r'"question" is missing among the fields text; .*--question-field text'),
        ([{"question": "Q?", "choices": ["4", "7"], "answer": "9"}], "none of the choices"),
    ],
)
def test_bad_questions_are_named_before_a_model_is_loaded(
    rows: list[dict[str, Any]], words: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=words):
        count_questions(trials.write_questions(tmp_path / "q.parquet", rows), DATA)


def test_questions_without_an_answer_are_counted_and_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"question": f"{n}?", "answers": {"text": ["a"] * (n % 3 > 0)}} for n in range(6)]
    file = tmp_path / "q.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert count_questions(file, DATA) == 6
    assert f"{file}: 2 of 6 questions have no answer to grade by" in caplog.text
    assert [bool(q.answers) for q in read_questions(file, DATA, 0, 3)] == [False, True, True]


def test_a_directory_that_holds_something_else_is_refused(
    run: Path, questions: Path, tmp_path: Path
) -> None:
    for used in (run, questions.parent):
        with pytest.raises(ConfigError, match=f"{used} is not empty; name a new directory"):
            label(questions, used, trials.settings(run))
        assert not (used / "_label.json").exists()


def test_a_question_that_is_too_long_is_named_by_its_row(run: Path, tmp_path: Path) -> None:
    rows = [{"question": text} for text in ("What is 1?", "what " * 45, "why " * 300)]
    questions = trials.write_questions(tmp_path / "q.parquet", rows)
    for new in (250, 12):
        settings = trials.settings(run, {"sample.max_new_tokens": new}, shard_size=1)
        with pytest.raises(ModelError, match=rf"{questions} row 2 has \d+ tokens"):
            label(questions, tmp_path / "out", settings)
    trials.write_questions(questions, rows[:2])  # before there are shards, questions may change
    assert label(questions, tmp_path / "out", trials.settings(run, shard_size=1)).made == 2


def test_a_damaged_shard_is_named_and_made_again(
    run: Path, questions: Path, tmp_path: Path
) -> None:
    settings, out = trials.settings(run, ONE), tmp_path / "out"
    label(questions, out, settings)
    shard = out / "part-00001.parquet"
    shard.write_bytes(shard.read_bytes()[:500])
    with pytest.raises(
        RunError, match=r"part-00001.parquet is damaged \(.*; delete it, and repeat"
    ):
        label(questions, out, settings)
    shard.unlink()
    assert label(questions, out, settings).made == 1


def test_a_torn_record_binds_a_directory_to_nothing(
    run: Path, questions: Path, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "_label.json.partial").write_text('{"settings"')
    assert label(questions, tmp_path / "out", trials.settings(run, ONE)).made == 5


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no file"):
        count_questions(tmp_path / "gone.parquet", DATA)
    (tmp_path / "q.parquet").write_text('{"question": "Q?"}')
    with pytest.raises(DataError, match="not a Parquet file"):
        count_questions(tmp_path / "q.parquet", DATA)


def test_a_shard_that_another_process_makes_is_left_to_it(
    run: Path, questions: Path, tmp_path: Path
) -> None:
    settings, out = trials.settings(run, ONE), tmp_path / "out"
    label(questions, out, settings)
    shard_path(out, 1).unlink()
    shard_path(out, 3).unlink()
    with locked(out / f".{shard_path(out, 1).name}.partial"):
        done = label(questions, out, settings)
    assert (done.responses, done.shards, done.made, done.left) == (19, 4, 1, 1)
    assert label(questions, out, settings)[1:5] == (24, 5, 1, 0)


def test_a_shard_is_not_written_where_other_settings_have_begun(
    run: Path, questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, table = tmp_path / "out", Labeller.table

    def slow(self: Labeller, start: int, stop: int) -> Any:
        (out / RECORD).write_text("{}")  # of a command that came before the first file
        return table(self, start, stop)

    monkeypatch.setattr(Labeller, "table", slow)
    with pytest.raises(RunError, match="begun again meanwhile, with other settings"):
        label(questions, out, trials.settings(run, ONE))
    assert not files(out)


def test_no_more_workers_load_the_model_than_there_are_shards_to_make(
    run: Path, questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, asked = trials.settings(run, ONE), []
    label(questions, tmp_path / "out", settings)
    shard_path(tmp_path / "out", 1).unlink()
    monkeypatch.setattr(labelling, "side_by_side", lambda *given, as_one: asked.append(given[1:]))
    assert label(questions, tmp_path / "out", settings, workers=4).left == 1
    assert asked == [([(0, "")], ["worker 0"], 1)]


def test_two_workers_write_the_rows_of_one_process(
    run: Path, questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forks.start_server()
    monkeypatch.setattr("multiprocessing.get_context", lambda _: forks.CONTEXT)  # sooner there
    settings = trials.settings(run, features=("mean",))
    done = [label(questions, tmp_path / str(n), settings, workers=n) for n in (1, 2)]
    assert done[0] == done[1]
    assert files(tmp_path / "1") == files(tmp_path / "2")


@pytest.mark.parametrize(
    ("visible", "workers", "shares"),
    [
        ("0,1,2,3", 2, ["0,2", "1,3"]),
        ("5", 2, ["5", "5"]),
        ("4,5", 1, [""]),
        ("4,5,6", 3, ["4", "5", "6"]),
    ],
)
def test_workers_share_the_gpus(
    visible: str, workers: int, shares: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert labelling._gpus_of(workers) == shares


def test_a_directory_of_an_earlier_version_is_refused(
    run: Path, questions: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    label(questions, out, trials.settings(run, ONE))
    record = json.loads((out / RECORD).read_text())
    (out / RECORD).write_text(json.dumps(record | {"how": {}}))
    with pytest.raises(RunError, match="by an earlier version; its files can be read as they are"):
        label(questions, out, trials.settings(run, ONE))


@pytest.mark.parametrize("own", [{}, {"id": "q0"}])
def test_a_directory_begun_before_passages_stood_above_questions_is_refused(
    run: Path, tmp_path: Path, own: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"context": "It is a cat.", "answers": ["cat"], "question": "What is it?", **own}
    other = row | {"question": "Who is it?"} | {name: "q1" for name in own}
    questions = trials.write_questions(tmp_path / "q.parquet", [row, other])
    out, settings = tmp_path / "out", trials.settings(run, ONE, shard_size=1)
    with monkeypatch.context() as before:
        before.setattr("grace.tasks.values.passage_in", lambda *_: ("", ()))
        label(questions, out, settings)
    assert label(questions, out, settings).made == 0
    shard_path(out, 1).unlink()
    with pytest.raises(RunError, match=r"read the question .* in another way; .* name a new dir"):
        label(questions, out, settings)


def test_a_killed_process_loses_nothing(run: Path, tmp_path: Path) -> None:
    questions = trials.write_questions(tmp_path / "questions.parquet", trials.QUESTIONS[:8])
    out, whole = tmp_path / "out", tmp_path / "whole"
    process, stderr = processes.start(main, trials.arguments(questions, out, run))
    while not files(out) and process.is_alive():
        time.sleep(0.02)
    process.kill()
    stderr.close()
    process.join()
    before = len(files(out))
    for place in (out, whole):
        done = processes.finish(main, trials.arguments(questions, place, run))
        assert done.code == 0, done.said
    assert 1 <= before <= 8
    assert trials.rows(out) == trials.rows(whole)
    assert len(trials.rows(out)) == 24
