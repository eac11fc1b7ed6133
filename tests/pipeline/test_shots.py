"""A run on a base model: plain text, examples before every question, a newline that ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import grace
import tiny_run
from grace.chat import encode_chat, encode_text
from grace.config import override_settings
from grace.engines.reading import stop_ids
from grace.export import export_model
from grace.pipeline import run
from grace.pipeline.context import open_run
from grace.pipeline.stages import answers
from grace.records import Question, from_json
from grace.store import read_json

SHOTS = ("data.shots=3", "data.train=17", 'sample.stop=["\\n", "e"]')


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of a model without a chat template, with three examples."""
    folder = tmp_path_factory.mktemp("shots")
    model = tiny_run.write_model(folder / "model", chat_template=None)
    file = tiny_run.write_questions(folder / "questions.jsonl")
    where = (f"model.path={model}", "data.task=jsonl", f"data.file={file}")
    run(folder / "run", override_settings({}, [*where, *tiny_run.FAST, *SHOTS]))
    return folder / "run"


def _questions(path: Path) -> list[Question]:
    return [from_json(Question, json.loads(line)) for line in path.read_text().splitlines()]


def _context(path: Path) -> Any:
    return open_run(path)


def test_examples_are_in_every_prompt_and_in_no_table(shown: Path) -> None:
    shots = _questions(shown / "train" / "shots.jsonl")
    lead = "".join(f"Q: {shot.text}\nA: {shot.answers[0]}\n" for shot in shots)
    context = _context(shown)
    tokenizer = context.engine("base").tokenizer
    assert len(shots) == 3
    for split in ("train", "validation", "test"):
        questions = _questions(shown / split / "questions.jsonl")
        assert not {shot.id for shot in shots} & {question.id for question in questions}
        prompts = [tokenizer.decode(ids) for ids in context.prompts(questions)]
        assert prompts == [f"{lead}Q: {question.text}\nA:" for question in questions]


def test_no_response_holds_a_stop_text(shown: Path) -> None:
    for split in ("train", "validation", "test", "test/tuned"):
        lines = (shown / split / "responses.jsonl").read_text().splitlines()
        texts = [json.loads(line)["text"] for line in lines]
        assert len(lines) >= 10
        assert not any("\n" in text or "e" in text for text in texts)


def test_a_loaded_model_asks_with_the_same_examples_prompt_and_stops(shown: Path) -> None:
    model = grace.load(shown)
    question = _questions(shown / "test" / "questions.jsonl")[0]
    stored = json.loads((shown / "test/tuned/responses.jsonl").read_text().splitlines()[0])
    reply = model.ask(question.text)
    assert reply.text == stored["text"].strip()  # a batch rounds otherwise than one row alone
    assert reply.confidence == pytest.approx(stored["confidence"], abs=1e-6)
    prompt = encode_chat(model.engine.tokenizer, model.messages(question.text))
    spaced = encode_text(model.engine.tokenizer, " 7")
    assert model.score([question.text], ["7"]) == model.engine.confidences([prompt], [spaced])


def test_an_export_ends_at_the_same_tokens_and_says_so(shown: Path, tmp_path: Path) -> None:
    export_model(shown, shown / "adapter", str(shown.parent / "model"), tmp_path / "out")
    before, after = grace.load(shown), grace.load(tmp_path / "out")
    stops = stop_ids(before.engine.tokenizer, ["\n", "e"])
    assert set(stops) < set(before.engine.reader.stops)  # type: ignore[attr-defined]
    assert set(after.engine.reader.stops) == set(before.engine.reader.stops)  # type: ignore[attr-defined]
    named = read_json(tmp_path / "out" / "generation_config.json")["eos_token_id"]
    assert set(named) == set(before.engine.reader.stops)  # type: ignore[attr-defined]
    assert read_json(tmp_path / "out" / "grace.json")["stop_ids"] == list(stops)
    assert f"any of the {len(stops)} tokens" in (tmp_path / "out" / "README.md").read_text()
    question = _questions(shown / "test" / "questions.jsonl")[1].text
    assert after.ask(question).text == before.ask(question).text
    assert after.messages(question) == before.messages(question)


def test_text_and_its_newline_are_said_once(shown: Path, capsys: Any) -> None:
    context = _context(shown)
    context.prompts(_questions(shown / "test" / "questions.jsonl"))
    context.prompts(_questions(shown / "train" / "questions.jsonl"))
    said = capsys.readouterr().err
    assert said.count("has no chat template") == 1
    assert context.data.prompt == "text"
    assert context.engines.prompt_settings.stop == ("\n", "e")


def test_right_and_wrong_answers_are_shown_after_grading(shown: Path, capsys: Any) -> None:
    answers.grade(_context(shown))
    said = capsys.readouterr().err.splitlines()
    verdicts = [line.partition(":")[0] for line in said if "(accepted: " in line]
    assert verdicts == ["right"] * 3 + ["wrong"] * 3
    grades = (shown / "train" / "grades.jsonl").read_text().splitlines()
    right = next(json.loads(line)["question_id"] for line in grades if json.loads(line)["correct"])
    asked = {q.id: q for q in _questions(shown / "train" / "questions.jsonl")}[right]
    assert said[0].startswith(f"right: {asked.text} -> ")
    assert said[0].endswith(f"(accepted: {asked.answers[0]})")
