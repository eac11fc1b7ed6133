"""What a run does where its settings leave open how questions are asked."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest

import tiny_run
from grace.config import RunSettings, override_settings
from grace.engines.local import loading
from grace.engines.local.loading import load_tokenizer
from grace.pipeline import prompting, run
from grace.pipeline import settings as run_settings
from grace.pipeline.context import Context
from grace.pipeline.stages.answers import plan_units, sampling_for
from grace.records import Question
from grace.store import RunDir, read_json

OPEN = [one for one in tiny_run.FAST if not one.startswith(("data.", "sample.max_new"))]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("asking")
    tiny_run.write_model(folder / "chat")
    tiny_run.write_model(folder / "plain", chat_template=None)
    tiny_run.write_questions(folder / "questions.jsonl")
    return folder


def settings(inputs: Path, model: str, *changes: str) -> RunSettings:
    where = (f"model.path={inputs / model}", "data.task=jsonl")
    return override_settings(
        {}, [*where, f"data.file={inputs / 'questions.jsonl'}", *OPEN, *changes]
    )


def chosen(path: Path, given: RunSettings, monkeypatch: pytest.MonkeyPatch, **right: int) -> Any:
    """Return the context of a run in which a prompt has so many right answers."""
    monkeypatch.setattr(
        prompting, "_count_right", lambda _, way, *__: right.get(f"{way.prompt}{way.shots}", 0)
    )
    context = Context(RunDir(path), given)
    prompting.settle(context)
    return context


def test_a_run_without_settings_asks_as_most_training_questions_are_answered_right(
    inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = settings(inputs, "chat")
    run(tmp_path / "run", given, until="fit")
    found = read_json(tmp_path / "run/train/asking.json")
    tried = {(row["prompt"], row["shots"]): row["right"] for row in found["tried"]}
    assert list(tried) == [("paper", 0), ("short", 0), ("text", 5)]
    assert found["of"] == 16  # of 21 training questions, five are examples
    assert tried[found["prompt"], found["shots"]] == max(tried.values()) > 0
    card = read_json(tmp_path / "run/adapter/grace.json")
    assert (card["data"]["prompt"], card["data"]["shots"]) == (found["prompt"], found["shots"])
    assert card["sample"]["max_new_tokens"] == found["max_new_tokens"] == 50
    said = capsys.readouterr().err
    assert said.count("prompts tried on 16 training questions") == 1
    assert " train, 6 validation, 13 test, and 5 as examples in every prompt (at most" in said
    assert read_json(tmp_path / "run/config.json")["settings"]["data"]["prompt"] == "auto"
    run(tmp_path / "run", given, until="fit")  # and goes on as it began


@pytest.mark.parametrize(
    ("right", "prompt", "shots"),
    [
        ({"paper0": 3, "short0": 2, "text5": 2}, "paper", 0),
        ({"paper0": 2, "short0": 3, "text5": 3}, "short", 0),
        ({"paper0": 2, "short0": 3, "text5": 4}, "text", 5),
        ({}, "paper", 0),
    ],
)
def test_the_first_of_the_best_prompts_is_used_and_kept(
    right: dict[str, int],
    prompt: str,
    shots: int,
    inputs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = settings(inputs, "chat")
    context = chosen(tmp_path / "run", given, monkeypatch, **right)
    again = Context(RunDir(tmp_path / "run"), given)
    for data in (context.settings.data, again.settings.data, again.data):
        assert (data.prompt, data.shots) == (prompt, shots)
    assert again.engines.prompt_settings.stop == (("\n",) if prompt == "text" else ())


def test_a_model_without_a_chat_template_gets_examples_where_they_help(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = settings(inputs, "plain")
    helped = chosen(tmp_path / "helped", given, monkeypatch, text0=2, text5=3)
    assert (helped.settings.data.prompt, helped.settings.data.shots) == ("text", 5)
    without = chosen(tmp_path / "without", given, monkeypatch, text0=3, text5=3)
    assert (without.settings.data.prompt, without.settings.data.shots) == ("text", 0)


def test_without_a_question_to_spare_no_examples_are_tried(
    inputs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    taken = settings(inputs, "plain", "data.train=27", "data.validation=6", "data.test=7")
    context = chosen(tmp_path / "run", taken, monkeypatch, text0=2, text5=3)
    assert (context.settings.data.prompt, context.settings.data.shots) == ("text", 0)
    assert "data.train leaves no question for examples" in capsys.readouterr().err


def test_what_is_set_is_not_chosen(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = {"text5": 9, "text0": 8, "text2": 7}
    named = settings(inputs, "chat", "data.prompt=short")
    context = chosen(tmp_path / "named", named, monkeypatch, **best)
    assert (context.settings.data.prompt, context.settings.data.shots) == ("short", 0)
    shots = settings(inputs, "chat", "data.shots=2", "sample.max_new_tokens=7")
    context = chosen(tmp_path / "shots", shots, monkeypatch, **best)
    assert (context.settings.data.prompt, context.settings.data.shots) == ("text", 2)
    assert context.settings.sample.max_new_tokens == 7
    none = settings(inputs, "chat", "data.shots=0")
    context = chosen(tmp_path / "none", none, monkeypatch, **best)
    assert (context.settings.data.prompt, context.settings.data.shots) == ("text", 0)
    whole = settings(inputs, "chat", "data.prompt=short", "sample.max_new_tokens=7")
    chosen(tmp_path / "whole", whole, monkeypatch)
    assert not (tmp_path / "whole").exists()


def test_answers_that_are_numbers_are_counted_as_numbers(
    inputs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [{"question": f"What is {n} + 1?", "answer": f"{n + 1:,}"} for n in range(990, 1020)]
    sums = tmp_path / "sums.jsonl"
    sums.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    whole = ("data.prompt=short", "sample.max_new_tokens=7", f"data.file={sums}")
    given = settings(inputs, "chat", *whole, "grade.grader=")
    assert chosen(tmp_path / "a", given, monkeypatch).task.kind == "number"
    again = Context(RunDir(tmp_path / "a"), given)
    assert again.settings.grade.grader == "number"
    votes = [
        again.task.answer(text) for text in ("So $1,000.", "1000", "1 + 1e3 - 1 = 1000.0", "no")
    ]
    assert votes == ["1000", "1000", "1000", None]
    assert "grade.grader=number" in capsys.readouterr().err
    exact = settings(inputs, "chat", *whole, "grade.grader=exact")
    assert chosen(tmp_path / "b", exact, monkeypatch).task.kind == "open"
    (asked,) = given and again.task.questions("test", given.data, given.seed)[:1]
    for row in rows:
        row["answer"] = "infinite" if row["question"] == asked.text else row["answer"]
    sums.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert chosen(tmp_path / "c", given, monkeypatch).task.kind == "open"


def test_answers_have_room_for_explanations_and_for_what_is_accepted(inputs: Path) -> None:
    tokenizer = load_tokenizer(str(inputs / "chat"))
    short, long = (Question("1", "jsonl", "?", (answer,)) for answer in ("x", "why " * 60))
    choice = Question("2", "jsonl", "?", ("A",), ("x", "y"))
    room = functools.partial(run_settings.longest_answer, tokenizer)
    assert room([short], thinking=False) == 50
    assert room([short, long], thinking=False) > 2 * 60
    assert room([short, choice], thinking=False) == 512
    assert room([short], thinking=True) == 50 + run_settings.THOUGHT


def test_only_a_question_with_options_has_room_for_an_explanation(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_settings, "EXPLAINED", 56)
    lines = (inputs / "questions.jsonl").read_text("utf-8").splitlines()[:24]
    rows = [json.loads(line) for line in lines]
    for row in rows[::3]:
        row |= {"choices": ["x", "y", "z"], "answers": "B"}
    file = tiny_run.write_lines(tmp_path / "mixed.jsonl", rows)
    given = settings(inputs, "chat", f"data.file={file}", "data.prompt=text", "data.shots=0")
    context = chosen(tmp_path / "run", given, monkeypatch)
    asking = read_json(tmp_path / "run/train/asking.json")
    assert (asking["max_new_tokens"], asking["open_tokens"]) == (56, 50)
    questions = context.task.questions("train", given.data, 0)
    sampling = sampling_for(context.settings, "train")
    units = plan_units(context.engines.base, questions, context.prompts(questions), sampling)
    longest = {key: unit.sampling.max_new_tokens for unit in units for key in unit.keys}
    assert longest == {one.id: 56 if one.choices else 50 for one in questions}
    assert [unit.number for unit in units] == [*range(len(units))]


def test_a_prompt_that_the_model_cannot_hold_is_not_chosen(inputs: Path, tmp_path: Path) -> None:
    long = {"question": "word " * 60, "answers": ["a"]}
    rows = [long | {"id": str(n), "question": f"{n} {long['question']}"} for n in range(30)]
    file = tmp_path / "long.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    context = Context(RunDir(tmp_path / "run"), settings(inputs, "chat", f"data.file={file}"))
    prompting.settle(context)
    tried = read_json(tmp_path / "run/train/asking.json")["tried"]
    assert {row["prompt"]: row["right"] for row in tried}["text"] == 0


@pytest.mark.parametrize("model", ["chat", "plain"])
def test_the_backbone_is_loaded_once_for_the_trial_and_for_the_run(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    loaded, load = list[Any](), loading.load

    def noted(*args: Any, **options: Any) -> Any:
        loaded.append(load(*args, **options))
        return loaded[-1]

    monkeypatch.setattr(loading, "load", noted)
    context = Context(RunDir(tmp_path / "run"), settings(inputs, model))
    prompting.settle(context)
    base, again = context.engines.base, Context(RunDir(tmp_path / "run"), context.open_settings)
    assert [base.model] == [one.model for one in loaded]
    assert base.reader.stops == again.engines.base.reader.stops  # as in a run that was resumed
