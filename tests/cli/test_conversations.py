"""Conversations from files to replies: what runs, fits, scores and servers make of them."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

import grace
import tiny_run
from grace.chat import encode_chat
from grace.config import override_settings
from grace.pipeline import run
from grace.pipeline.context import open_run
from grace.records import to_json
from grace.server import ServerSettings, create_app
from grace.store import RunDir, read_card

LAST = ("--set", "grace.layer=0")
SYSTEM = {"role": "system", "content": "Name one number."}


def turns(n: int, *, system: bool = True, earlier: bool = True) -> list[dict[str, str]]:
    """A conversation, by default one as in the files of this module."""
    before = [
        {"role": "user", "content": f"I have {n}."},
        {"role": "assistant", "content": "Well."},
    ]
    asked = {"role": "user", "content": f"What is {n} and {n * 7}?"}
    return [*[SYSTEM] * system, *before * earlier, asked]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("conversations")
    tiny_run.write_model(folder / "model")
    rows = [{"id": f"q{n}", "messages": turns(n), "answers": [str(n)]} for n in range(40)]
    tiny_run.write_lines(folder / "questions.jsonl", rows)
    where = (f"model.path={folder / 'model'}", "data.task=jsonl", "method=grace", "grace.layer=0")
    file = f"data.file={folder / 'questions.jsonl'}"
    size = ("data.prompt=auto", 'report.estimators=["grace","likelihood"]')
    run(folder / "run", override_settings({}, [*where, file, *tiny_run.FAST, *size, *where[-2:]]))
    return folder


def test_a_run_asks_the_conversations_of_its_file_as_they_stand(folder: Path) -> None:
    context = open_run(folder / "run")
    for split in ("train", "validation", "test"):
        questions = RunDir(folder / "run").split(split).questions.read()
        for question, chat in zip(questions, context.messages(questions), strict=True):
            n = int(question.id.removeprefix("q"))
            assert chat == turns(n) and question.text == turns(n)[-1]["content"]
            assert to_json(question)["messages"] == tuple(turns(n))
    asking = json.loads((folder / "run" / "train" / "asking.json").read_text())
    assert len(asking["tried"]) == 1 and asking["shots"] == 0  # no prompt makes a difference


def test_a_fit_of_the_same_answers_sees_the_same_prompts_and_scores_alike(
    folder: Path, cli: Any
) -> None:
    split = RunDir(folder / "run").split("train")
    said = {response.question_id: response.text for response in split.responses.read()}
    grades = {grade.question_id: grade.correct for grade in split.grades.read()}
    rows = [
        {"messages": list(one.messages), "response": said[one.id], "correct": grades[one.id]}
        for one in split.questions.read()
    ]
    tiny_run.write_lines(folder / "graded.jsonl", rows)
    made = cli("fit", folder / "model", folder / "graded.jsonl", folder / "fitted", *LAST)
    assert made.code == 0, made.err
    cards = [read_card(folder / name) for name in ("run/adapter", "fitted")]
    assert cards[0]["conversations"] == cards[1]["conversations"]
    assert [card["data"]["system"] for card in cards] == [SYSTEM["content"]] * 2
    scored = folder / "scored.jsonl"
    assert cli("score", folder / "run", folder / "graded.jsonl", "--out", scored).code == 0
    found = [json.loads(line)["confidence"] for line in scored.read_text().splitlines()]
    model = grace.load(folder / "run")
    expected = model.score([row["messages"] for row in rows], [row["response"] for row in rows])
    assert found == pytest.approx(expected, abs=1e-6)


def test_calibrated_is_true_for_what_was_fitted_alone(folder: Path) -> None:
    model = grace.load(folder / "run")
    app = create_app(model, ServerSettings(name="tiny"), folder / "run")

    def said(path: str, **body: Any) -> Any:
        answer = client.post(f"/v1/{path}", json={"model": "tiny", **body})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def is_calibrated(**item: Any) -> bool:
        return bool(said("score", input=[{"response": "4", **item}])["data"][0]["calibrated"])

    with TestClient(app, base_url="http://127.0.0.1") as client:
        for system, earlier in itertools.product((True, False), repeat=2):
            messages, is_fitted = turns(99, system=system, earlier=earlier), system and earlier
            raw = {"grace": {"prompt": "raw"}} if len(messages) == 1 else {}
            answer = said("chat/completions", messages=messages, max_tokens=2, **raw)
            assert answer["choices"][0]["calibrated"] is is_fitted
            prompt = encode_chat(model.engine.tokenizer, messages)
            assert answer["usage"]["prompt_tokens"] == len(prompt)
            assert is_calibrated(messages=messages) is is_fitted
        for more in ({}, {"grace": {"budget": 1}}, {"grace": {"budget": 2}}):  # has no earlier turn
            answer = said("chat/completions", messages=[turns(5)[-1]], max_tokens=2, **more)
            assert answer["choices"][0]["calibrated"] is False
        assert is_calibrated(question="What is 5?") is False


def test_labelled_conversations_can_be_fitted(folder: Path, cli: Any) -> None:
    how = ("--set", "grade.grader=tiny_run:coin", "--set", "sample.max_new_tokens=24")
    questions, labelled = folder / "questions.jsonl", folder / "labelled"
    made = cli("label", questions, labelled, "--model", folder / "model", *how)
    assert made.code == 0, made.err
    made = cli("fit", folder / "model", labelled, folder / "of labels", *LAST)
    assert made.code == 0, made.err
    assert read_card(folder / "of labels")["conversations"] == [
        [SYSTEM, {"role": "earlier", "content": "\ue0f2"},
         {"role": "user", "content": "What is \ue0f2"}]
    ]  # fmt: skip


def test_conversations_that_all_end_alike_need_groups(folder: Path, cli: Any) -> None:
    rows = [{"messages": [*turns(n)[:-1], turns(0)[-1]], "answers": ["1"]} for n in range(60)]
    file = tiny_run.write_lines(folder / "alike.jsonl", rows)
    refused = cli(*tiny_run.run_arguments(folder / "other", folder / "model", file))
    assert refused.code == 2 and "60 different questions in 1 group" in refused.err
    assert "unless a column `group` says otherwise" in refused.err
