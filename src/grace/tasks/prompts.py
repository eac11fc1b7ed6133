"""The prompts: how questions and options are written out, and the examples before them.

Source: arXiv 2509.09438 Appendix A; instructions in the system turn and options in the user turn
as in the published code of arXiv 2503.00031.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from grace.answers import lettered
from grace.config import DataSettings
from grace.errors import DataError, ModelError, UserInputError
from grace.records import Message, Question, from_json

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


def ask(question: Question, data: DataSettings) -> list[Message]:
    """Return the turns that ask a question, in the paper's words or those of `data`."""
    options = lettered(question.choices)
    if data.prompt == "text" or data.template:
        template = data.template or (CHOICE_TEXT if options else OPEN_TEXT)
        if options and "{options}" not in template:
            raise UserInputError(
                f"data.template is {template!r}, so the choices would not be shown; put "
                "{options} where they go, or write them into the question"
            )
        parts = {"question": question.text, "options": "\n".join(options)}
        text = PLACES.sub(lambda place: parts[place[1]], template)
        return _turns(data.system, text, "text" if data.prompt == "text" else "user")
    text = f"Question: {question.text}"
    if options:
        return _turns(data.system or STEP_BY_STEP, "\n".join([text, "Options:", *options]))
    if data.prompt == "short":
        text += "\nGuess:"
    elif not data.system:
        text = OPEN_ENDED + text
    return _turns(data.system, text)


def conversation(
    task: Task, question: Question, data: DataSettings, shots: Sequence[Question] = ()
) -> list[Message]:
    """Return the turns that ask a question, after examples; a conversation stands as it is."""
    if question.messages:
        return list(question.messages)
    turns: list[Message] = []
    for shot in shots:
        turns += [*task.messages(shot, data), {"role": "assistant", "content": _reply(shot, data)}]
    first, *later = [*turns, *task.messages(question, data)]
    bare: list[Message] = [
        {"role": turn["role"], "content": turn["content"].removeprefix(OPEN_ENDED)}
        for turn in later
        if turn["role"] != "system"
    ]
    return [first, *bare]


def draw_training(
    task: Task, data: DataSettings, seed: int
) -> tuple[list[Question], list[Question]]:
    """Return the examples shown before every question, the pool's first, and training questions."""
    shots = max(data.shots, 0)
    wanted = dataclasses.replace(data, train=data.train + shots, shots=0) if data.train else data
    try:
        drawn = task.questions("train", wanted, seed)
    except DataError as error:
        less = f"; data.shots takes {shots} more than data.train" if shots else ""
        raise DataError(f"{error}{less}") from None
    if len(drawn) <= shots:
        raise DataError(
            f"all {len(drawn)} training questions are examples in the prompt, as data.shots is "
            f"{shots}; set it to at most {len(drawn) - 1}"
        )
    return drawn[:shots], drawn[shots:]


def _reply(shot: Question, data: DataSettings) -> str:
    """Return the answer of an example, in the form that the prompt asks for."""
    answer = " ".join(shot.answers[0].split())
    if shot.choices:
        return f"Answer: {answer}"
    is_paper = data.prompt in ("auto", "paper") and not (data.system or data.template)
    return f"Guess: {answer}" if is_paper else answer


def _turns(system: str, text: str, role: str = "user") -> list[Message]:
    first: list[Message] = [{"role": "system", "content": system}] if system else []
    return [*first, {"role": role, "content": text}]


def recorded_shots(card: dict[str, Any]) -> tuple[Question, ...]:
    """Return the few-shot examples in grace.json."""
    try:
        return tuple(from_json(Question, shot) for shot in card.get("shots", ()))
    except (TypeError, AttributeError) as error:
        raise ModelError(
            f"the shots in grace.json are not questions ({error}); restore the file, or train again"
        ) from None
