"""The end tokens of a model: those that its configurations name, and those with a stop text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grace.chat.saved import read_config
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


def ids_in(*fields: Any) -> list[int]:
    """Return the ids in `eos_token_id` fields, each of which is an id, a list of ids, or None."""
    return [i for ids in fields for i in ([ids] if isinstance(ids, int) else ids or ())]


def named_ends(folder: Path) -> tuple[int, ...]:
    """Return the end tokens that generation_config.json and config.json of a model name."""
    configs = (read_config(folder / name) for name in ("generation_config.json", "config.json"))
    return tuple(dict.fromkeys(ids_in(*(config.get("eos_token_id") for config in configs))))


def named_rows(folder: Path) -> int:
    """Return the vocabulary size in a model's config.json, 0 if it names none."""
    config = read_config(folder / "config.json")
    rows: int = config.get("text_config", config).get("vocab_size") or 0
    return rows
