"""What an adapter's grace.json says of its training: the prompts, the answers, their ends."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from grace.config import to_dict
from grace.errors import UserInputError
from grace.pipeline.context import Context
from grace.pipeline.settings import absolute_model
from grace.records import Message, Question, to_json
from grace.tasks import title_of
from grace.tasks.answered import Answered
from grace.tasks.conversations import MARK, forms_of, prompt_of
from grace.tasks.prompts import conversation


def adapter_metadata(context: Context, asked: Sequence[Question | Answered]) -> dict[str, Any]:
    """Return the entries of grace.json with which `grace.load` makes the prompts of training."""
    from grace.engines.reading import stop_ids

    model, stop = context.settings.model.path, context.engines.prompt_settings.stop
    data, sample = to_dict(context.data), to_dict(context.settings.sample)
    shots = context.shots.read() if context.data.shots else []
    chats = [one.messages for one in asked if one.messages]
    forms = forms_of(chats)
    if chats and len(chats) == len(asked):  # questions are asked like the conversations
        data, shots = data | prompt_of(forms), []
    elif chats:
        forms += _own_form(context, shots)
    return {
        "questions": title_of(context.settings.data),
        "kind": "choice" if all(question.choices for question in asked) else context.task.kind,
        "base_model": absolute_model(model),
        "data": {key: data[key] for key in ("task", "prompt", "template", "shots", "system")},
        "shots": [to_json(shot) for shot in shots],
        "sample": sample | {"stop": list(stop)},
        "stop_ids": list(stop_ids(context.engines.base.tokenizer, stop)),
        **({"conversations": forms} if forms else {}),
    }


def _own_form(context: Context, shots: Sequence[Question]) -> list[list[Message]]:
    """Return the form of the run's own prompt, none if it needs choices."""
    question = Question("0", context.task.name, MARK, ())
    with contextlib.suppress(UserInputError):
        return [conversation(context.task, question, context.data, shots)]
    return []
