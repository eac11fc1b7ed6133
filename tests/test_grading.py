"""Graders against a table of cases, and against the packages that they follow."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grace import grading
from grace.errors import ConfigError, DataError
from grace.grading import load_grader
from grace.metrics.rouge import rouge_l
from grace.probe.rows import labels_of
from grace.records import Question

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


words = st.lists(st.sampled_from(["a", "b", "c", "Dd", "7", "é", "--", "x y"]), max_size=9)


@settings(deadline=None)
@given(reference=words, response=words)
def test_rouge_l_equals_the_rouge_score_package(reference: list[str], response: list[str]) -> None:
    from rouge_score.rouge_scorer import RougeScorer

    wanted, said = " ".join(reference), " ".join(response)
    scorer = RougeScorer(["rougeL"], use_stemmer=False)
    expected = scorer.score(wanted, said)["rougeL"].fmeasure
    assert rouge_l(wanted, said) == expected


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


def test_a_grader_refuses_a_question_of_the_other_kind() -> None:
    with pytest.raises(ConfigError, match=r"set grade\.grader to choice"):
        grade("x", ask(["A"], ["x", "y"]), "rouge")
    with pytest.raises(ConfigError, match=r"set grade\.grader to rouge or exact"):
        grade("Answer: A", ask(["Paris"]), "choice")


@pytest.mark.parametrize(
    ("correct", "message"),
    [
        ([True] * 3, "all 3 training responses are right, so there is no confidence to learn"),
        ([False] * 2, "all 2 training responses are wrong, so there is no confidence to learn"),
        ([], "all training responses are empty, or cut"),
    ],
)
def test_answers_of_one_kind_teach_no_confidence(correct: list[bool], message: str) -> None:
    with pytest.raises(DataError, match=message):
        labels_of(correct)
    assert labels_of([*correct, True, False])[-2:].tolist() == [1.0, 0.0]


def test_math_without_its_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with pytest.raises(ConfigError, match=r"pip install 'grace-confidence\[math\]'"):
        grade("x", ask(["x"]), "math")


@pytest.mark.parametrize("said", ["9^{9^{9^9}}", "(9999999)!", "{" * 3000])
def test_a_formula_that_never_ends_is_wrong_and_soon(
    said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("math_verify")
    assert grade(r"\boxed{(x+1)^2}", ask(["x^2+2x+1"]), "math")
    monkeypatch.setattr(grading, "MATH_SECONDS", 1)
    assert not grade(rf"\boxed{{{said}}}", ask(["3"]), "math")
