"""What engines without hidden states have in common, and what every engine refuses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from grace.engines import Features
from grace.engines.reading import Reader, Step
from grace.errors import DataError, ModelError
from grace.evidence import confidence, traced


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


class ReadsSteps(NoStates):
    """An engine that rates given responses by the steps that they are made of."""

    reader: Reader

    def _given(
        self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]
    ) -> Iterator[tuple[list[Step], list[float]]]:
        """Yield the steps of each response, the one after it last, and its tokens' log p."""
        raise NotImplementedError

    def confidences(
        self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]
    ) -> list[float]:
        """Return c of given responses (token ids without the end token).

        Raises:
            ModelError: there is no `<CNF>`, or the engine cannot rate given responses.
        """
        reader, found = self.reader, []
        for steps, logprobs in self._given(prompts, responses):
            read = [*map(reader.reading, steps[:1] if reader.at_prompt else steps)]
            found.append(confidence(read, logprobs, reader.end(steps[-1]), reader.evidence))
        return found

    def traces(
        self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        """Return c at every step of given responses, that of the end last.

        Raises:
            ModelError: the model knows c at the end only.
        """
        reader = self.reader
        return [
            traced([*map(reader.reading, steps)], before, reader.end(steps[-1]), reader.evidence)
            for steps, before in self._given(prompts, responses)
        ]

    def logprobs(
        self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]
    ) -> list[tuple[list[float], float]]:
        """Return each response's token log-probabilities and the log-probability of its end.

        Raises:
            ModelError: the engine cannot rate given responses.
        """
        return [
            (logprobs, self.reader.end_logprob(steps[-1]))
            for steps, logprobs in self._given(prompts, responses)
        ]


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
