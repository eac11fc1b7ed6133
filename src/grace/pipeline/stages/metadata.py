"""What an adapter's grace.json says of its training: the prompts, the answers, their ends."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from grace.config import to_dict
from grace.pipeline.context import Context
from grace.pipeline.paths import absolute_model
from grace.records import to_json
from grace.tasks import title_of


class WithChoices(Protocol):
    """A question or an answer to one, which may have had choices."""

    @property
    def choices(self) -> tuple[str, ...]:
        """The choices, if any."""
        ...


def adapter_metadata(context: Context, asked: Iterable[WithChoices]) -> dict[str, Any]:
    """Return the entries of grace.json with which `grace.load` makes the prompts of training."""
    from grace.engines.stops import stop_ids

    model, stop = context.settings.model.path, context.engines.prompt_settings.stop
    data, sample = to_dict(context.data), to_dict(context.settings.sample)
    shots = context.shots.read() if context.data.shots else []
    return {
        "questions": title_of(context.settings.data),
        "kind": "choice" if all(question.choices for question in asked) else context.task.kind,
        "base_model": absolute_model(model),
        "data": {key: data[key] for key in ("task", "prompt", "template", "shots", "system")},
        "shots": [to_json(shot) for shot in shots],
        "sample": sample | {"stop": list(stop)},
        "stop_ids": list(stop_ids(context.engines.base.tokenizer, stop)),
    }
