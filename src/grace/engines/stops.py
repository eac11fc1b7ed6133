"""Turn stop texts into end tokens, so that engines need ids only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from grace.errors import ModelError


def stop_ids(tokenizer: Any, stop: Sequence[str]) -> tuple[int, ...]:
    """Return the ids of all tokens whose text contains one of the stop texts.

    The shortest tokens come first, since they are by far the most probable. Special tokens are left
    out, since their text is never part of a response.

    Raises:
        ModelError: no single token contains one of the stop texts.
    """
    if not stop:
        return ()
    backend = tokenizer.backend_tokenizer
    singles = [[token] for token in range(len(tokenizer))]
    texts = backend.decode_batch(singles, skip_special_tokens=True)
    found: set[int] = set()
    for part in stop:
        holding = [token for token, text in enumerate(texts) if part in text]
        if not holding:
            raise ModelError(
                f"no token of the vocabulary contains the stop text {part!r}, so it cannot end a "
                "response; use a shorter one, e.g. its first character"
            )
        found.update(holding)
    return tuple(sorted(found, key=lambda token: (len(texts[token]), token)))
