"""The paper's prompts, and how questions and options are written out.

Source: arXiv 2509.09438 Appendix A; instructions in the system turn and options in the user turn
as in the published code of arXiv 2503.00031.
"""

from __future__ import annotations

from grace.config import DataSettings
from grace.errors import ConfigError
from grace.grading import LETTERS
from grace.records import Message, Question

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


def ask_open(question: Question, data: DataSettings) -> list[Message]:
    """Return the turns that ask an open question: the paper's one user turn by default.

    `data.prompt` short leaves the instructions out; `data.system` takes their place.

    Raises:
        ConfigError: no such prompt.
    """
    if data.prompt not in ("paper", "short"):
        raise ConfigError(f"data.prompt is {data.prompt!r}, expected paper or short")
    text = f"Question: {question.text}"
    if data.prompt == "short":
        text += "\nGuess:"
    elif not data.system:
        text = OPEN_ENDED + text
    return _turns(data.system, text)


def ask_choice(question: Question, data: DataSettings) -> list[Message]:
    """Return the turns that ask a multiple-choice question: instructions, then the options.

    `data.system` replaces the instructions.
    """
    options = zip(LETTERS, question.choices, strict=False)
    lines = [f"Question: {question.text}", "Options:", *(f"{key}. {text}" for key, text in options)]
    return _turns(data.system or STEP_BY_STEP, "\n".join(lines))


def _turns(system: str, user: str) -> list[Message]:
    first: list[Message] = [{"role": "system", "content": system}] if system else []
    return [*first, {"role": "user", "content": user}]
