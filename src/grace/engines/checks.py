"""What every engine refuses, in the same words."""

from __future__ import annotations

from collections.abc import Sequence

from grace.engines import Features
from grace.errors import DataError, ModelError


class NoStates:
    """An engine that gives no hidden states."""

    def features(
        self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]
    ) -> Features:
        """Refuse.

        Raises:
            ModelError: always; names the engine that can.
        """
        raise ModelError(
            "this engine gives no hidden states; use the transformers engine for features"
        )


def check_contexts(
    contexts: Sequence[Sequence[int]],
    limit: int | None,
    new_tokens: int = 0,
    keys: Sequence[str] = (),
) -> None:
    """Refuse what a model cannot hold.

    Args:
        contexts: token ids.
        limit: the model's context in tokens, None where there is no limit.
        new_tokens: how many more each may get.
        keys: names of the contexts, for the message; without any their numbers count.

    Raises:
        DataError: an empty context.
        ModelError: a context and what may follow it exceed the limit.
    """
    for index, context in enumerate(contexts):
        name = keys[index] if keys else index
        if len(context) == 0:
            raise DataError(f"prompt {name} has no tokens; give it at least one")
        if limit is not None and len(context) + new_tokens > limit:
            raise ModelError(
                f"prompt {name} has {len(context)} tokens and may get {new_tokens} more, but "
                f"the model's context is {limit}; shorten it or lower max_new_tokens"
            )
