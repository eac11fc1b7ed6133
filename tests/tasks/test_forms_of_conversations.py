"""Conversations in place of questions: how files have them, and which forms they have."""

from __future__ import annotations

import json
from typing import Any

import pytest

from grace.errors import DataError
from grace.records import Message
from grace.store.inputs import Row, Untyped
from grace.tasks.conversations import forms_of, has_form, prompt_of, read_conversation
from grace.tasks.draw import identity
from grace.tasks.prompts import conversation
from grace.tasks.values import parse


def chat(*turns: str, system: str = "") -> list[Message]:
    first = [Message(role="system", content=system)] if system else []
    roles = ("user", "assistant")
    return [*first, *(Message(role=roles[n % 2], content=turn) for n, turn in enumerate(turns))]


BEFORE = chat("Where is Rome?", "In Italy.", "And its river?", system="Be brief.")


@pytest.mark.parametrize("column", ["messages", "prompt", "question"])
@pytest.mark.parametrize("in_a_cell", [False, True])
def test_a_list_of_turns_in_the_column_of_the_question_is_asked_as_it_stands(
    column: str, in_a_cell: bool
) -> None:
    written: Any = Untyped(json.dumps(BEFORE)) if in_a_cell else BEFORE
    question = parse(Row("1", {column: written, "answers": ["Tiber"]}))
    assert (question.text, list(question.messages)) == ("And its river?", BEFORE)
    assert conversation(None, question, None, [question]) == BEFORE  # type: ignore[arg-type]


def test_earlier_turns_make_another_question_but_a_system_prompt_does_not() -> None:
    asked = {
        name: parse(Row("1", {"messages": turns, "answers": ["x"]}))
        for name, turns in {
            "rome": BEFORE,
            "other system": chat(*(turn["content"] for turn in BEFORE[1:]), system="Be long."),
            "paris": chat("Where is Paris?", "In France.", "And its river?", system="Be brief."),
        }.items()
    }
    assert identity(asked["rome"]) == identity(asked["other system"]) != identity(asked["paris"])
    assert len({question.cluster for question in asked.values()}) == 1  # in one split, all the same


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user"}]}, '"messages" must be a list of {"role": ...'),
        ({"messages": chat("a", "b")}, "ends with a turn of the assistant; end with the user's"),
        ({"messages": chat(" ")}, "ends with an empty turn"),
        ({"messages": [*chat("a", "b"), *chat("c", system="d")]}, "move it to the front"),
        ({"messages": [{"role": "tool", "content": "4"}, *chat("a")]}, "has the role 'tool'; use"),
        ({"messages": chat("a"), "choices": ["x", "y"]}, "choices belong to a"),
        ({"messages": chat("a"), "prompt": "b"}, 'both "prompt" and "messages" could be'),
    ],
)
def test_what_no_model_can_answer_is_refused_with_the_remedy(
    row: dict[str, Any], said: str
) -> None:
    with pytest.raises(DataError) as refused:
        parse(Row("file.jsonl:1", {"answers": ["x"], **row}))
    assert said in str(refused.value) and str(refused.value).startswith("file.jsonl:1")


def test_a_form_is_a_system_prompt_with_or_without_earlier_turns() -> None:
    seen = [chat(f"Q: {n}?\nA:", system="Be brief.") for n in range(9)]
    seen += [chat("Hi", "Yes?", f"Q: {n}?\nA:", system="Be brief.") for n in range(5)]
    seen += [chat(f"Tell me about {n}") for n in range(7)]
    forms = forms_of(seen)
    assert len(forms) == 3

    def known(*turns: str, system: str = "") -> bool:
        return any(has_form(chat(*turns, system=system), form) for form in forms)

    assert all(any(has_form(one, form) for form in forms) for one in seen)
    assert known("Q: Who?\nA:", system="Be brief.")
    assert known("a", "b", "c", "d", "Q: Who?\nA:", system="Be brief.")
    assert known("Tell me about geese")
    assert not known("Q: Who?\nA:")  # no fitted one was without the system prompt
    assert not known("Q: Who?\nA:", system="Be long.")
    assert not known("Who?", system="Be brief.")
    assert not known("a", "b", "Tell me about geese")
    assert not known("a", "b", system="Be brief.")
    assert not has_form([*chat("a"), *BEFORE], forms[1])  # its system prompt comes later


@pytest.mark.parametrize(
    ("systems", "other", "is_known"),
    [
        (["You sell boats.", "You mend shoes."], "You bake bread.", False),
        (["You are Ann's helper, today is May 1.", "You are Ann's helper, today is June 2."],
         "You are Ann's helper, today is July 30.", True),
    ],
)  # fmt: skip
def test_system_prompts_are_one_if_most_of_their_text_is(
    systems: list[str], other: str, is_known: bool
) -> None:
    forms = forms_of([chat(f"Why {n}", system=systems[n % 2]) for n in range(20)])
    assert any(has_form(chat("Why so", system=other), form) for form in forms) is is_known
    assert any(has_form(chat("Why so", system=systems[0]), form) for form in forms)


def test_a_question_is_asked_in_the_form_of_most_conversations_without_earlier_turns() -> None:
    seen = [chat("Hi", "Yes?", f"Q: {n}?\nA:", system="Be brief.") for n in range(9)]
    seen += [chat(f"Q: {n}?\nA:", system="Be brief.") for n in range(5)]
    found = prompt_of(forms_of(seen))
    assert (found["system"], found["template"]) == ("Be brief.", "Q: {question}\nA:")
    assert prompt_of(forms_of([chat("Sure?")] * 4))["template"] == ""


def test_turns_are_kept_as_they_are_written() -> None:
    turns = [{"role": "user", "content": " a \n", "name": "Ann"}]
    assert read_conversation(turns, "here") == [{"role": "user", "content": " a \n"}]
