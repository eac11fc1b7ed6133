"""What a user may ask and score: text."""

from __future__ import annotations

from collections.abc import Sequence

from grace.errors import UserInputError
from grace.grading import LETTERS
from grace.records import Message


def check_question(question: str, choices: Sequence[str]) -> None:
    """Refuse a question or choices without text.

    Raises:
        UserInputError: names what is wrong.
    """
    if isinstance(choices, str):
        raise UserInputError("choices is one text; give a list with the text of every option")
    for text, what in ((question, "question"), *((choice, "choice") for choice in choices)):
        check_text(text)
        if not text.strip():
            raise UserInputError(f"the {what} is empty; write some text")
    if choices and not 2 <= len(choices) <= len(LETTERS):
        raise UserInputError(f"got {len(choices)} choices; give 2 to {len(LETTERS)}")


def check_pairs(prompts: Sequence[object], responses: Sequence[str]) -> None:
    """Refuse what is not a list of prompts with a response each.

    Raises:
        UserInputError: names what is wrong.
    """
    if isinstance(prompts, str) or isinstance(responses, str):
        raise UserInputError("prompts and responses are lists; put a single one in brackets")
    if len(prompts) != len(responses):
        raise UserInputError(
            f"{len(prompts)} prompts but {len(responses)} responses; give one response each"
        )
    for text in responses:
        check_text(text)


def checked_chat(chat: Sequence[Message]) -> Sequence[Message]:
    """Return a conversation; raise an error if it is malformed.

    Raises:
        UserInputError: a message lacks a part or is no text.
    """
    for message in chat:
        if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
            raise UserInputError(f"message {message!r} lacks a role or a content; give both")
        check_text(message["content"])
    return chat


def check_text(text: str) -> None:
    """Refuse what is no text or cannot be written as UTF-8.

    Raises:
        UserInputError: names what is wrong.
    """
    if not isinstance(text, str):
        raise UserInputError(f"got {text!r} where a text belongs; give a str")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserInputError(
            f"character {error.start + 1} of {text[:40]!r} is half a surrogate pair or no UTF-8; "
            "write it whole"
        ) from None
