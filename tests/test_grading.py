"""Graders against a table of cases, and against the packages that they follow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grace.errors import ConfigError, DataError
from grace.grading import is_number, letter, load_grader, normalise, number, short_answer
from grace.metrics.rouge import rouge_l
from grace.probe.rows import labels_of
from grace.records import Question
from grace.tasks import load_task

CASES = json.loads((Path(__file__).parent / "data" / "grading_cases.json").read_text("utf-8"))


def grade(text: str, question: Question, grader: str = "auto", threshold: float = 0.3) -> bool:
    return load_grader(grader, threshold)(text, question)


def ask(answers: list[str], choices: list[str] | None = None) -> Question:
    return Question("q", "test", "Why?", tuple(answers), tuple(choices or ()))


@pytest.mark.parametrize("case", CASES["grading"], ids=lambda c: f"{c['grader']}: {c['why']}")
def test_a_grader_judges_as_the_table_says(case: dict[str, Any]) -> None:
    question = ask(case["answers"], case.get("choices"))
    right = grade(case["response"], question, case["grader"], case.get("threshold", 0.3))
    assert right is case["right"]


@pytest.mark.parametrize(("text", "expected"), CASES["letters"])
def test_the_letter_after_answer_is_found(text: str, expected: str | None) -> None:
    assert letter(text) == expected


@pytest.mark.parametrize(("text", "expected"), CASES["short_answers"])
def test_the_short_answer_is_the_labelled_or_the_first_line(text: str, expected: str) -> None:
    assert short_answer(text) == expected


@pytest.mark.parametrize(("text", "expected"), CASES["numbers"])
def test_the_number_of_a_text_is_found(text: str, expected: float | None) -> None:
    assert number(text) == expected


@pytest.mark.parametrize(("text", "expected"), CASES["normalised"])
def test_normalised_text_has_no_case_articles_or_punctuation(text: str, expected: str) -> None:
    assert normalise(text) == expected


words = st.lists(st.sampled_from(["a", "b", "c", "Dd", "7", "é", "--", "x y"]), max_size=9)


@settings(deadline=None)
@given(reference=words, response=words)
def test_rouge_l_equals_the_rouge_score_package(reference: list[str], response: list[str]) -> None:
    from rouge_score.rouge_scorer import RougeScorer

    wanted, said = " ".join(reference), " ".join(response)
    scorer = RougeScorer(["rougeL"], use_stemmer=False)
    expected = scorer.score(wanted, said)["rougeL"].fmeasure
    assert rouge_l(wanted, said) == expected


@settings(deadline=None)
@given(st.text())
def test_no_text_breaks_an_extraction(text: str) -> None:
    short_answer(text)
    letter(text)
    number(text)
    assert normalise(normalise(text)) == normalise(text)


@settings(deadline=None)
@given(st.text(max_size=40))
def test_an_answer_that_says_something_is_exactly_itself(text: str) -> None:
    answer = short_answer(text)
    if answer and short_answer(answer) == answer:
        assert grade(answer, ask([answer]), "exact")
        assert grade(answer, ask([answer]), "rouge", threshold=1.0)


def test_a_long_response_is_graded_in_no_time() -> None:
    question = ask([f"alias number {n}" for n in range(300)])
    assert not grade("word " * 3000, question, "rouge")
    assert not grade("Answer: " * 3000, ask(["A"], ["x", "y"]), "choice")
    assert not grade("((" * 20000 + "*" * 20000, question, "rouge")
    assert letter("answer: " + "(*_" * 20000) is None
    assert number("1," * 20000) is not None
    for text in (
        "\n" * 100_000,
        " " * 100_000,
        "* " * 50_000,
        "answer" * 20_000,
        "answer:\n" * 9_000,
    ):
        assert not grade(text, question, "rouge")
        assert letter(text) is None and number(text) is None


def test_a_grader_of_ones_own_is_called_with_text_and_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_grader_module.py").write_text(
        "def loud(text, question):\n    return text == question.answers[0].upper()\n"
        "def odd(text, question):\n    return 0.7\n"
        "import numpy\ndef many(text, question):\n    return numpy.array([True, False])\n"
    )
    monkeypatch.chdir(tmp_path)
    loud = load_grader("own_grader_module:loud")
    assert loud("PARIS", ask(["Paris"])) is True
    assert loud("Paris", ask(["Paris"])) is False
    with pytest.raises(ConfigError, match=r"returned 0\.7; it must return True or False"):
        load_grader("own_grader_module:odd")("x", ask(["Paris"]))
    with pytest.raises(ConfigError, match=r"'own_grader_module:many' failed on question"):
        load_grader("own_grader_module:many")("x", ask(["Paris"]))


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("3/4", True),
        ("$1,200", True),
        ("5%", True),
        ("1/0", False),
        ("5 kg", False),
        ("1 1/2", True),
    ],
)
def test_a_text_is_a_number_if_it_has_the_value_of_one(text: str, whole: bool) -> None:
    assert is_number(text) is whole


def test_an_unknown_grader_is_answered_with_the_closest_and_the_list() -> None:
    with pytest.raises(ConfigError, match=r"'rogue'; did you mean 'rouge'\? known: rouge, .*exact"):
        load_grader("rogue")


def test_a_grader_refuses_a_question_of_the_other_kind() -> None:
    with pytest.raises(ConfigError, match=r"set grade\.grader to choice"):
        grade("x", ask(["A"], ["x", "y"]), "rouge")
    with pytest.raises(ConfigError, match=r"set grade\.grader to rouge or exact"):
        grade("Answer: A", ask(["Paris"]), "choice")


def test_number_refuses_a_question_without_a_number() -> None:
    with pytest.raises(DataError, match=r"'q' accepts 'Paris', which is no number"):
        grade("42", ask(["Paris"]), "number")


@pytest.mark.parametrize(
    ("correct", "message"),
    [
        ([True] * 3, "all 3 training responses are right, so there is no confidence to learn"),
        ([False] * 2, "all 2 training responses are wrong, so there is no confidence to learn"),
        ([], "all training responses were cut at the length limit"),
    ],
)
def test_answers_of_one_kind_teach_no_confidence(correct: list[bool], message: str) -> None:
    with pytest.raises(DataError, match=message):
        labels_of(correct)
    assert labels_of([*correct, True, False])[-2:].tolist() == [1.0, 0.0]


@pytest.mark.shared
def test_normalisation_is_trivia_qas_own(shared: Path) -> None:
    lines = (shared / "datasets" / "trivia_qa" / "validation.jsonl").read_text("utf-8").split("\n")
    for row in map(json.loads, lines[:2000]):
        normalised = set(map(normalise, row["answer"]["aliases"]))
        # They keep typographic quotes, which ours leaves out.
        assert set(map(normalise, row["answer"]["normalized_aliases"])) <= normalised


def test_what_is_thought_is_not_graded():
    said = "<think>\nSo Answer: A? Hmm no, B.\n</think>\n\nAnswer: B"
    assert letter(said) == "B"
    assert number("<think>Answer: 5? No, 7.</think>\n\nAnswer: 7") == 7


@pytest.mark.parametrize(
    "text",
    ["B", "(B)", "b.", "\\boxed{B}", "The answer is B.", "B. Paris", "Paris", "Answer: paris"],
)
def test_of_choices_auto_accepts_what_a_vote_counts(text: str) -> None:
    question = Question("1", "jsonl", "Which?", ("B",), ("Rome", "Paris", "-5", "5"))
    assert load_grader("auto")(text, question)
    assert load_task("jsonl").answer(text, question.choices) == "B"


@pytest.mark.parametrize("text", ["A Paris trip", "B Rome", "E", "5", "", "Be"])
def test_of_choices_auto_accepts_nothing_that_names_no_option_or_another(text: str) -> None:
    question = Question("1", "jsonl", "Which?", ("B",), ("Rome", "Paris", "-5", "5"))
    assert not load_grader("auto")(text, question)
