"""The readers of answers: a table for each kind, numbers in every grouping, and hostile texts."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grace import answers
from grace.answers import alike, is_number, kind_of, normalise, numbers, read, short_answer
from grace.grading import load_grader
from grace.records import Question
from grace.tasks import load_task

CASES = json.loads((Path(__file__).parent / "data" / "answer_cases.json").read_text("utf-8"))
MET = json.loads((Path(__file__).parent / "data" / "answers_met.json").read_text("utf-8"))


def misread(table: str, reads: Callable[..., bool]) -> list[Any]:
    """Return the cases of a table that are not read as it says."""
    return [case for case in CASES[table] if not reads(*case)]


def test_the_short_answer_is_the_labelled_or_the_first_line() -> None:
    assert misread("short_answers", lambda text, wanted: short_answer(text) == wanted) == []


def test_a_number_is_read_as_a_whole_or_not_at_all() -> None:
    def reads(text: str, wanted: float | None) -> bool:
        token = numbers.read(text)
        said = None if token is None else numbers.canonical(token.value)
        value = token and float(token.value or 0)
        return value == wanted and read(text, "number") == said

    assert misread("numbers", reads) == []


def test_the_first_yes_or_no_is_read_with_its_negation() -> None:
    assert misread("yes_no", lambda text, wanted: read(text, "yes_no") == wanted) == []


def test_an_option_is_read_by_letter_place_or_text() -> None:
    found = misread("options", lambda text, given, wanted: read(text, "choice", given) == wanted)
    assert found == []


def test_a_text_says_what_is_accepted() -> None:
    def reads(accepted: str, said: str, right: bool) -> bool:
        return alike(accepted, short_answer(said), 0.3) is right

    assert misread("texts", reads) == []


def test_a_verdict_is_that_of_a_careful_reader() -> None:
    def reads(accepted: str | list[str], said: str, right: bool) -> bool:
        texts = (accepted,) if isinstance(accepted, str) else tuple(accepted)
        return load_grader("auto")(said, Question("q", "jsonl", "?", texts)) is right

    assert misread("verdicts", reads) == []


def test_what_a_name_is_may_be_left_out_if_the_question_says_it() -> None:
    def reads(asked: str, accepted: str, said: str, right: bool) -> bool:
        return load_grader("auto")(said, Question("q", "jsonl", asked, (accepted,))) is right

    assert misread("asked", reads) == []


@pytest.mark.parametrize("met", MET, ids=lambda met: met["kind"])
def test_answers_as_models_write_them_are_right_or_wrong(met: dict[str, Any]) -> None:
    question = Question("q", "jsonl", met["asked"], tuple(met["accepted"]), tuple(met["choices"]))
    stated = [(said, word == "right") for word in ("right", "wrong") for said in met[word]]
    assert [one for one in stated if load_grader("auto")(one[0], question) is not one[1]] == []


def test_votes_count_what_means_the_same() -> None:
    def reads(first: str, second: str, kind: answers.Kind, same: bool) -> bool:
        return (read(first, kind) == read(second, kind)) is same

    assert misread("votes", reads) == []


@pytest.mark.parametrize(
    ("accepted", "choices", "kind"),
    [
        (["B"], ["x", "y"], "choice"),
        (["1,200", "1200.0"], [], "number"),
        (["½"], [], "number"),
        (["10^6"], [], "number"),
        (["5 km"], [], "open"),
        (["42", "forty-two"], [], "open"),
        (["yes", "true"], [], "yes_no"),
        (["No."], [], "yes_no"),
        (["right"], [], "open"),  # the hand
        (["yes", "perhaps"], [], "open"),
        ([], [], "open"),
    ],
)
def test_the_kind_follows_from_what_is_accepted(
    accepted: list[str], choices: list[str], kind: str
) -> None:
    assert kind_of(accepted, choices) == kind


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        *(("3/4", True), ("$1,200", True), ("5%", True), ("1 1/2", True), ("-5.", True)),
        *(("1/0", False), ("5 kg", False), ("1,200,30", False), ("7 8", False), ("", False)),
    ],
)
def test_a_text_is_a_number_if_it_has_the_value_of_one(text: str, whole: bool) -> None:
    assert is_number(text) is whole


@pytest.mark.parametrize(
    ("said", "accepted", "right"),
    [
        *(("50%", "50", True), ("50%", "0.5", True), ("0.5", "50%", True), ("5%", "50%", False)),
        *(("0.3333333", "1/3", True), ("1,000,001", "1000000", False), ("0.33", "1/3", False)),
    ],
)
def test_numbers_are_equal_but_for_rounding_and_percent(
    said: str, accepted: str, right: bool
) -> None:
    question = Question("q", "jsonl", "?", (accepted,))
    assert load_grader("auto")(said, question) is right


def grouped(digits: str, mark: str, *, lakhs: bool = False) -> str:
    """Return digits in groups of three from the end; of two before the last three, as in India."""
    head, groups, size = digits, list[str](), 3
    while len(head) > size:
        groups.insert(0, head[-size:])
        head, size = head[:-size], 2 if lakhs else 3
    return mark.join([head, *groups])


WRITTEN = {
    "plain": lambda digits, part: digits + (f".{part}" if part else ""),
    "comma": lambda digits, part: grouped(digits, ",") + (f".{part}" if part else ""),
    "lakhs": lambda digits, part: grouped(digits, ",", lakhs=True) + (f".{part}" if part else ""),
    "apostrophe": lambda digits, part: grouped(digits, "'") + (f".{part}" if part else ""),
    "quote": lambda digits, part: grouped(digits, "\u2019") + (f",{part}" if part else ""),
    "space": lambda digits, part: grouped(digits, " ") + (f",{part}" if part else ""),
    "narrow": lambda digits, part: grouped(digits, "\u202f") + (f".{part}" if part else ""),
    "no-break": lambda digits, part: grouped(digits, "\xa0") + (f",{part}" if part else ""),
    "latex": lambda digits, part: grouped(digits, r"\,") + (f".{part}" if part else ""),
    "braces": lambda digits, part: grouped(digits, "{,}") + (f".{part}" if part else ""),
    "underscore": lambda digits, part: grouped(digits, "_") + (f".{part}" if part else ""),
}
PLACES = ["{}", "Answer: {}", "So it is {}.", "\\boxed{{{}}}", "**{}**", "#### {}", "$ {}", "{} km"]


@settings(deadline=None)
@given(
    value=st.integers(0, 10**15),
    part=st.sampled_from(["", "5", "25", "7500"]),
    style=st.sampled_from(sorted(WRITTEN)),
    minus=st.sampled_from(["", "-", "\u2212", "\u2013"]),
    place=st.sampled_from(PLACES),
)
def test_a_number_in_any_grouping_is_read_back(
    value: int, part: str, style: str, minus: str, place: str
) -> None:
    written = place.format(minus + WRITTEN[style](str(value), part))
    token = numbers.read(written)
    expected = Fraction(f"{value}.{part or 0}") * (-1 if minus else 1)
    assert token is not None and token.value == expected, written
    assert read(written, "number") == numbers.canonical(expected)


@settings(deadline=None)
@given(
    over=st.integers(0, 999),
    under=st.integers(1, 999),
    form=st.sampled_from([r"\frac{%d}{%d}", r"$\dfrac{%d}{%d}$", "%d/%d", "%d / %d", "%d\u2044%d"]),
)
def test_a_fraction_is_read_exactly(over: int, under: int, form: str) -> None:
    token = numbers.read(f"Answer: {form % (over, under)}")
    assert token is not None and token.value == Fraction(over, under)


@settings(deadline=None)
@given(groups=st.lists(st.text("0123456789", min_size=1, max_size=4), min_size=3, max_size=5))
def test_digits_between_commas_are_one_number_or_none(groups: list[str]) -> None:
    token = numbers.read(f"Answer: {','.join(groups)}")
    assert token is None or token.value == int("".join(groups))


@pytest.mark.parametrize("said", ["some say ", "maybe x, ", "but some say ", "and "])
def test_a_long_text_is_compared_soon(said: str) -> None:
    start = time.process_time()
    load_grader("auto")(said * 2000, Question("q", "jsonl", "Which city?", ("Paris",)))
    assert time.process_time() - start < 3  # some take 0.3 s; it was 12 s


def test_a_number_of_endless_words_is_none() -> None:
    assert read("one " + "hundred " * 3000, "number") is None


@settings(deadline=None)
@given(st.text() | st.text(alphabet="0123456789 .,-/\\{}^*x=$()%AB:\n", max_size=60))
def test_no_text_breaks_a_reader(text: str) -> None:
    for kind in ("open", "number", "yes_no", "choice"):
        read(text, kind)  # type: ignore[arg-type]
    read(text, "choice", ("A train", "7", "B"))
    is_number(text)
    alike(text, text[::-1], 0.3)
    assert answers.text.canonical(text) == answers.text.canonical(answers.finding.plain(text))
    assert normalise(normalise(text)) == normalise(text)


def test_the_published_cases_are_read_right_in_grades_and_in_votes(shared: Path) -> None:
    file = shared / "cases" / "answers.jsonl"
    if not file.exists():
        warnings.warn(f"{file} is not here, so its cases are not tried", stacklevel=1)
        pytest.skip(f"{file} is not here")
    for row in map(json.loads, file.read_text("utf-8").splitlines()):
        if row["kind"] == "same vote?":
            kind: Any = "yes_no" if "yes or no" in row.get("note", "") else "open"
            assert (read(row["said"], kind) == read(row["other"], kind)) is row["right"], row
            continue
        question = Question(
            "q", "jsonl", "?", tuple(row["accepted"]), tuple(row.get("choices", ()))
        )
        assert load_grader("auto")(row["said"], question) is row["right"], row


test_the_published_cases_are_read_right_in_grades_and_in_votes = pytest.mark.shared(
    test_the_published_cases_are_read_right_in_grades_and_in_votes
)


@pytest.mark.shared
def test_normalisation_is_trivia_qas_own(shared: Path) -> None:
    lines = (shared / "datasets" / "trivia_qa" / "validation.jsonl").read_text("utf-8").split("\n")
    for row in map(json.loads, lines[:2000]):
        normalised = set(map(normalise, row["answer"]["aliases"]))
        # They keep typographic quotes, which ours leaves out.
        assert set(map(normalise, row["answer"]["normalized_aliases"])) <= normalised


def test_what_is_thought_is_not_graded():
    said = "<think>\nSo Answer: A? Hmm no, B.\n</think>\n\nAnswer: B"
    assert read(said, "choice") == "B"
    assert read("<think>Answer: 5? No, 7.</think>\n\nAnswer: 7", "number") == "7"
    assert read("<think>It ends with </think> Answer: A</think>\n\nB", "choice") == "B"


@pytest.mark.parametrize("kind", ["choice", "number"])
def test_an_answer_that_repeats_itself_to_its_end_is_read_at_once(kind: Any) -> None:
    for said in ("答案", ". ", "( ", "so "):
        assert read(said * 20_000, kind, ("Rome", "Paris")) is None, said  # minutes if squared


def test_what_votes_count_is_what_the_grader_compares() -> None:
    question = Question("1", "jsonl", "Which?", ("B",), ("Rome", "Paris", "-5", "5"))
    for text, _, _ in CASES["options"]:
        voted = load_task("jsonl").answer(text, question.choices)
        assert load_grader("auto")(text, question) is (voted == "B"), text
    for kind, accepted in (("number", "1200"), ("yes_no", "no")):
        question = Question("1", "jsonl", "Which?", (accepted,))
        for text, expected in CASES[kind if kind == "yes_no" else "numbers"]:
            voted = load_task("jsonl", kind).answer(text)
            assert load_grader("auto")(text, question) is (voted == accepted), (text, expected)
