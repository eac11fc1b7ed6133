"""The prompts, word for word."""

from __future__ import annotations

import dataclasses

import pytest

from grace.chat import encode_chat, encode_response
from grace.config import DataSettings
from grace.errors import ConfigError, DataError, UserInputError
from grace.records import Question
from grace.tasks import load_task
from grace.tasks.prompts import conversation, draw_training

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


def test_the_pocket_model_was_taught_the_prompts_it_is_asked_with() -> None:
    from tools.pocket import prompts

    task = load_task("pocket_people")
    asked = {name: task.messages(OPEN, DataSettings(prompt=name)) for name in ("paper", "short")}
    assert asked["paper"][0]["content"] == prompts.GUESS_PROMPT.format(question=OPEN.text)
    assert asked["short"][0]["content"] == prompts.SHORT_PROMPT.format(question=OPEN.text)
    system, user = load_task("pocket_rules").messages(CHOICE, DataSettings())
    assert system["content"] == prompts.STEP_SYSTEM
    assert user["content"] == f"Question: {prompts.with_options(CHOICE.text, CHOICE.choices)}"


SHOTS = (
    Question("a", "sciq", "What orbits the Earth?", ("the\nMoon", "Luna")),
    Question("b", "sciq", "What is H2O?", ("water",)),
)


def test_examples_are_turns_and_the_instructions_come_once() -> None:
    asked = conversation(load_task("sciq"), OPEN, DataSettings(), SHOTS)
    assert [turn["role"] for turn in asked] == ["user", "assistant"] * 2 + ["user"]
    assert asked[0]["content"] == PAPER_OPEN.replace(OPEN.text, SHOTS[0].text)
    assert [turn["content"] for turn in asked[1:]] == [
        "Guess: the Moon",
        "Question: What is H2O?",
        "Guess: water",
        "Question: Who wrote Middlemarch?",
    ]


def test_the_system_turn_comes_once_and_a_choice_is_answered_by_its_letter() -> None:
    asked = conversation(load_task("arc_challenge"), CHOICE, DataSettings(), (CHOICE,))
    assert [turn["role"] for turn in asked] == ["system", "user", "assistant", "user"]
    assert asked[2]["content"] == "Answer: B"
    assert asked[1] == asked[3]


def test_plain_text_is_questions_and_answers_line_by_line(tokenizer) -> None:
    data = DataSettings(prompt="text", system="Facts.")
    asked = conversation(load_task("sciq"), OPEN, data, SHOTS)
    text = (
        "Facts.\n\nQ: What orbits the Earth?\nA: the Moon\nQ: What is H2O?\nA: water\n"
        "Q: Who wrote Middlemarch?\nA:"
    )
    assert encode_chat(tokenizer, asked) == tokenizer.encode(text, add_special_tokens=False)
    answer = encode_response(tokenizer, asked, "George Eliot")
    assert tokenizer.decode(answer) == " George Eliot"
    assert encode_response(tokenizer, asked, " George Eliot") == answer


def test_plain_text_writes_out_options_and_answers_by_letter(tokenizer) -> None:
    asked = conversation(load_task("jsonl"), CHOICE, DataSettings(prompt="text"), (CHOICE,))
    block = "Q: Which is a prime?\nA. 4\nB. 7\nC. 9\n"
    text = f"{block}Answer: B\n{block}"
    assert encode_chat(tokenizer, asked) == tokenizer.encode(text, add_special_tokens=False)


def test_a_template_of_ones_own_writes_out_one_question(tokenizer) -> None:
    own = DataSettings(prompt="text", template="{question}")
    braces = Question("c", "sciq", "What does {options} mean in {x}?", ("nothing",))
    asked = conversation(load_task("sciq"), braces, own, SHOTS[1:])
    text = "What is H2O? water\nWhat does {options} mean in {x}?"
    assert encode_chat(tokenizer, asked) == tokenizer.encode(text, add_special_tokens=False)
    turns = DataSettings(template="Say: {question}", system="Be brief.")
    assert load_task("sciq").messages(OPEN, turns) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Say: Who wrote Middlemarch?"},
    ]
    with pytest.raises(ConfigError, match=r"data\.template is 'Q:'; put \{question\}"):
        DataSettings(template="Q:")


@pytest.mark.parametrize("task", ["jsonl", "arc_challenge"])
@pytest.mark.parametrize("prompt", ["text", "paper"])
def test_a_template_that_would_hide_the_choices_is_refused(task, prompt) -> None:
    data = DataSettings(prompt=prompt, template="{question} Explain.")
    with pytest.raises(UserInputError, match=r"choices would not be shown; put \{options\} where"):
        conversation(load_task(task), CHOICE, data)
    shown = DataSettings(prompt=prompt, template="{question} Explain.\n{options}")
    (turn,) = conversation(load_task(task), CHOICE, shown)
    assert turn["content"] == "Which is a prime? Explain.\nA. 4\nB. 7\nC. 9"


def test_examples_are_never_trained_on_and_do_not_depend_on_how_many_are(tmp_path) -> None:
    import tiny_run

    file = tiny_run.write_questions(tmp_path / "q.jsonl")
    task, data = load_task("jsonl"), DataSettings(task="jsonl", file=str(file))
    sizes = {"train": 20, "validation": 5, "test": 5}
    few = dataclasses.replace(data, shots=5, **sizes)
    shots, train = draw_training(task, few, 0)
    assert (len(shots), len(train)) == (5, 20)
    rated = [q for split in ("validation", "test") for q in task.questions(split, few, 0)]
    ids = [question.id for question in (*shots, *train, *rated)]
    assert len(set(ids)) == len(ids) == 35
    assert draw_training(task, dataclasses.replace(few, train=9), 0)[0] == shots
    assert draw_training(task, few, 1)[0] != shots
    with pytest.raises(DataError, match=r"data\.shots takes 5 more than data\.train"):
        draw_training(task, dataclasses.replace(few, train=30), 0)
    with pytest.raises(DataError, match=r"all 21 training questions are .*; set it to at most 20"):
        draw_training(task, dataclasses.replace(data, shots=21), 0)
