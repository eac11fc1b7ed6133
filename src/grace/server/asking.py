"""Which prompt a conversation is asked with, and whether confidences are calibrated for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from grace.errors import UserInputError
from grace.records import Message

if TYPE_CHECKING:
    from grace.model import Model

MARK = "\ue0f2"  # stands for a question


class Conversation(NamedTuple):
    """What the model is asked; `calibrated`: with the prompt of its training run."""

    messages: Sequence[Message]
    calibrated: bool


class Asking:
    """The prompt of a model's training run."""

    def __init__(self, model: Model) -> None:
        self._model = model
        try:
            self._trained: Sequence[Message] = model.messages(MARK)
        except UserInputError:  # a task that asks no question without options
            self._trained = ()

    def conversation(self, given: Sequence[Message], *, raw: bool) -> Conversation:
        """Return what a conversation asks; one user turn is a question, unless `raw`.

        Raises:
            UserInputError: the question is empty.
        """
        alone = len(given) == 1 and given[0]["role"] == "user"
        if self.is_trained(given):
            return Conversation(given, calibrated=True)
        if raw or not alone or not self._trained:
            return Conversation(given, calibrated=False)
        return Conversation(self._model.messages(given[0]["content"]), calibrated=True)

    def is_trained(self, given: Sequence[Message]) -> bool:
        """Return whether messages are a question as the training run asks it."""
        return bool(self._trained) and len(given) == len(self._trained) and all(
            message["role"] == own["role"] and _fits(message["content"], own["content"])
            for message, own in zip(given, self._trained, strict=True)
        )  # fmt: skip


def _fits(text: str, own: str) -> bool:
    before, mark, after = own.partition(MARK)
    if not mark:
        return text == own
    inside = len(text) - len(before) - len(after)
    return inside > 0 and text.startswith(before) and text.endswith(after)
