"""The end tokens of a model: those that its configurations name, and those with a stop text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grace.errors import ModelError
from grace.store import read_object


def stop_ids(tokenizer: Any, stop: Sequence[str]) -> tuple[int, ...]:
    """Return all tokens whose text contains a stop text, the most probable first."""
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

    def order(token: int) -> tuple[bool, int, int]:
        return not texts[token].startswith(tuple(stop)), len(texts[token]), token

    return tuple(sorted(found, key=order))


def ids_in(*fields: Any) -> list[int]:
    """Return the ids in `eos_token_id` fields, each of which is an id, a list of ids, or None."""
    lists = (ids if isinstance(ids, list | tuple) else [ids] for ids in fields)
    return [i for ids in lists for i in ids if i is not None]


def named_ends(folder: Path) -> tuple[int, ...]:
    """Return the end tokens that generation_config.json and config.json of a model name."""
    ends: dict[int, None] = {}
    for file in (folder / "generation_config.json", folder / "config.json"):
        ids = ids_in(read_object(file).get("eos_token_id"))
        if not all(type(i) is int for i in ids):
            raise ModelError(f"{file}: eos_token_id is {ids}; write the id of a token, or a list")
        ends |= dict.fromkeys(ids)
    return tuple(ends)


def named_rows(folder: Path) -> int:
    """Return the vocabulary size in a model's config.json, 0 if it names none."""
    config = read_object(folder / "config.json")
    text = config.get("text_config", config)
    rows = (text.get("vocab_size") if isinstance(text, dict) else None) or 0
    if type(rows) is not int:
        raise ModelError(f"{folder / 'config.json'}: vocab_size is {rows!r}; write a whole number")
    return rows
