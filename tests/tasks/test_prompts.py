"""The prompts, word for word."""

from __future__ import annotations

import pytest

from grace.config import DataSettings
from grace.errors import ConfigError
from grace.records import Question
from grace.tasks import load_task

OPEN = Question("q", "sciq", "Who wrote Middlemarch?", ("George Eliot",))
CHOICE = Question("q", "arc_challenge", "Which is a prime?", ("B",), ("4", "7", "9"))

PAPER_OPEN = """Provide your best guess for the following question. Give ONLY the guess, no other words or explanation.

For example:

Question:<User's question>
Guess: <most likely guess based on the support, as short as possible; not a complete sentence, just the guess!>

Question: Who wrote Middlemarch?"""  # noqa: E501

PAPER_STEPS = """For the following question, provide a step-by-step explanation of your thought process.
Use the format demonstrated below for your response.

```Example Format:
Explanation: <Your detailed explanation here, outlining how you arrived at your answer.>
Answer: <Insert your concise answer here, which should include a option letter>
Ensure that your response strictly adheres to this format. Explicitly include the words 'Explanation:', 'Answer:'."""  # noqa: E501

OPTIONS = "Question: Which is a prime?\nOptions:\nA. 4\nB. 7\nC. 9"


def test_open_questions_are_asked_in_the_papers_words() -> None:
    turns = load_task("sciq").messages(OPEN, DataSettings())
    assert turns == [{"role": "user", "content": PAPER_OPEN}]


def test_the_short_prompt_is_the_question_and_a_label() -> None:
    turns = load_task("sciq").messages(OPEN, DataSettings(prompt="short"))
    assert turns == [{"role": "user", "content": "Question: Who wrote Middlemarch?\nGuess:"}]


@pytest.mark.parametrize("prompt", ["paper", "short"])
def test_choices_are_asked_step_by_step_in_the_papers_words(prompt: str) -> None:
    assert load_task("arc_challenge").messages(CHOICE, DataSettings(prompt=prompt)) == [
        {"role": "system", "content": PAPER_STEPS},
        {"role": "user", "content": OPTIONS},
    ]


def test_a_system_prompt_of_ones_own_leaves_the_bare_question() -> None:
    own = DataSettings(system="Answer in French.")
    assert load_task("sciq").messages(OPEN, own) == [
        {"role": "system", "content": "Answer in French."},
        {"role": "user", "content": "Question: Who wrote Middlemarch?"},
    ]
    assert load_task("arc_challenge").messages(CHOICE, own)[1]["content"] == OPTIONS


def test_an_unknown_prompt_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"data\.prompt is 'long', expected paper or short"):
        load_task("sciq").messages(OPEN, DataSettings(prompt="long"))


def test_the_pocket_model_was_taught_the_prompts_it_is_asked_with() -> None:
    from grace.pocket import prompts

    task = load_task("pocket_people")
    asked = {name: task.messages(OPEN, DataSettings(prompt=name)) for name in ("paper", "short")}
    assert asked["paper"][0]["content"] == prompts.GUESS_PROMPT.format(question=OPEN.text)
    assert asked["short"][0]["content"] == prompts.SHORT_PROMPT.format(question=OPEN.text)
    system, user = load_task("pocket_rules").messages(CHOICE, DataSettings())
    assert system["content"] == prompts.STEP_SYSTEM
    assert user["content"] == f"Question: {prompts.with_options(CHOICE.text, CHOICE.choices)}"
