"""The paper's prompts, how questions and options are written out, and the examples before them.

Source: arXiv 2509.09438 Appendix A; instructions in the system turn and options in the user turn
as in the published code of arXiv 2503.00031.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from grace.config import DataSettings
from grace.errors import ConfigError, DataError
from grace.grading import lettered
from grace.records import Message, Question

if TYPE_CHECKING:
    from grace.tasks import Task

OPEN_ENDED = """\
Provide your best guess for the following question. Give ONLY the guess, no other words or \
explanation.

For example:

Question:<User's question>
Guess: <most likely guess based on the support, as short as possible; not a complete sentence, \
just the guess!>

"""

STEP_BY_STEP = """\
For the following question, provide a step-by-step explanation of your thought process.
Use the format demonstrated below for your response.

```Example Format:
Explanation: <Your detailed explanation here, outlining how you arrived at your answer.>
Answer: <Insert your concise answer here, which should include a option letter>
Ensure that your response strictly adheres to this format. Explicitly include the words \
'Explanation:', 'Answer:'."""


OPEN_TEXT = "Q: {question}\nA:"
CHOICE_TEXT = "Q: {question}\n{options}\n"
PLACES = re.compile(r"\{(question|options)\}")


def ask_open(question: Question, data: DataSettings) -> list[Message]:
    """Return the turns that ask an open question: the paper's one user turn by default.

    `data.prompt` short leaves the instructions out, `data.system` and `data.template` take their
    place; text is one turn of plain text.

    Raises:
        ConfigError: no such prompt.
    """
    _check_prompt(data)
    if data.prompt == "text" or data.template:
        return _written(question, data, OPEN_TEXT)
    text = f"Question: {question.text}"
    if data.prompt == "short":
        text += "\nGuess:"
    elif not data.system:
        text = OPEN_ENDED + text
    return _turns(data.system, text)


def ask_choice(question: Question, data: DataSettings) -> list[Message]:
    """Return the turns that ask a multiple-choice question: instructions, then the options.

    `data.system` and `data.template` replace the instructions; `data.prompt` text is one turn of
    plain text.

    Raises:
        ConfigError: no such prompt.
    """
    _check_prompt(data)
    if data.prompt == "text" or data.template:
        return _written(question, data, CHOICE_TEXT)
    text = "\n".join([f"Question: {question.text}", "Options:", *lettered(question.choices)])
    return _turns(data.system or STEP_BY_STEP, text)


def conversation(
    task: Task, question: Question, data: DataSettings, shots: Sequence[Question] = ()
) -> list[Message]:
    """Return the turns that ask a question after those of the examples with their answers.

    The system turn and the paper's instructions come once.
    """
    turns: list[Message] = []
    for shot in shots:
        turns += [*task.messages(shot, data), {"role": "assistant", "content": _reply(shot, data)}]
    first, *later = [*turns, *task.messages(question, data)]
    return [first, *(_without_instructions(turn) for turn in later if turn["role"] != "system")]


def draw_training(
    task: Task, data: DataSettings, seed: int
) -> tuple[list[Question], list[Question]]:
    """Return the examples that go before every question, and the training questions.

    The examples come first in the seed's order of the training pool, so that they stay the same
    for any number of training questions, and are none of these.

    Raises:
        DataError: the pool is too small for both.
    """
    shots = max(data.shots, 0)
    wanted = dataclasses.replace(data, train=data.train + shots, shots=0) if data.train else data
    try:
        drawn = task.questions("train", wanted, seed)
    except DataError as error:
        less = f"; data.shots takes {shots} more than data.train" if shots else ""
        raise DataError(f"{error}{less}") from None
    return drawn[:shots], drawn[shots:]


def _reply(shot: Question, data: DataSettings) -> str:
    """Return the answer of an example, in the form that the prompt asks for."""
    answer = " ".join(shot.answers[0].split())
    if shot.choices:
        return f"Answer: {answer}"
    papers = data.prompt in ("auto", "paper") and not (data.system or data.template)
    return f"Guess: {answer}" if papers else answer


def _without_instructions(turn: Message) -> Message:
    return {"role": turn["role"], "content": turn["content"].removeprefix(OPEN_ENDED)}


def _written(question: Question, data: DataSettings, usual: str) -> list[Message]:
    """Return the question written out by a template, as plain text or as a user's turn."""
    parts = {"question": question.text, "options": "\n".join(lettered(question.choices))}
    text = PLACES.sub(lambda place: parts[place[1]], data.template or usual)
    if data.prompt != "text":
        return _turns(data.system, text)
    return [*_turns(data.system, "")[:-1], {"role": "text", "content": text}]


def _check_prompt(data: DataSettings) -> None:
    if data.prompt not in ("auto", "paper", "short", "text"):
        raise ConfigError(f"data.prompt is {data.prompt!r}, expected auto, paper, short or text")


def _turns(system: str, user: str) -> list[Message]:
    first: list[Message] = [{"role": "system", "content": system}] if system else []
    return [*first, {"role": "user", "content": user}]
