"""How long a text can be before it certainly has more tokens than a model takes.

Tokenising a megabyte takes seconds. Where every character of a text ends up in some token, and a
token stands for at most L characters, a text of N characters has at least N / L tokens; that is
known without tokenising. Some tokenizers drop characters, or fuse unknown ones without end: for
them nothing is known beforehand.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Json = dict[str, Any]
# What changes characters one by one, or depends on no more than their neighbours.
NORMALIZERS = {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Prepend", "Replace"}
NORMALIZERS |= {"ByteLevel", "Sequence"}
# What splits a text; `behavior` says if the places of the splits are dropped.
SPLITTERS = {"ByteLevel", "Digits", "Metaspace", "Punctuation", "Split", "UnicodeScripts"}
SPLITTERS |= {"Sequence"}


class Bound(NamedTuple):
    """What a tokenizer can do at most.

    Attributes:
        longest: most characters that one token stands for.
        strips: some token swallows the white space around it.
        lost: characters that have no token.
    """

    longest: int
    strips: bool
    lost: str = ""

    def least_tokens(self, backend: Tokenizer, text: str) -> int:
        """Return a number of tokens that the text has at least."""
        if len(text) > self.longest and backend.normalizer is not None:
            text = backend.normalizer.normalize_str(text)
        kept = "".join(text.split()) if self.strips else text
        count = len(kept) - sum(kept.count(character) for character in self.lost)
        return -(-count // self.longest)


def bound(backend: Tokenizer) -> Bound | None:
    """Return the bound of a tokenizer, None where it has none."""
    normalizer, splitter = _state(backend.normalizer), _state(backend.pre_tokenizer)
    parts = [*_parts(normalizer, "normalizers"), *_parts(splitter, "pretokenizers")]
    if any(str(part.get("behavior")).lower() == "removed" for part in parts):
        return None
    kinds = {part["type"] for part in _parts(splitter, "pretokenizers")}
    if not {part["type"] for part in _parts(normalizer, "normalizers")} <= NORMALIZERS:
        return None
    if not kinds <= SPLITTERS:
        return None
    vocabulary = backend.get_vocab()
    lost = _lost(backend, vocabulary, in_bytes="ByteLevel" in {part["type"] for part in parts})
    if lost is None:
        return None
    added = backend.get_added_tokens_decoder().values()
    strips = any(token.lstrip or token.rstrip for token in added)
    return Bound(max(map(len, vocabulary)), strips, lost)


def _lost(backend: Tokenizer, vocabulary: dict[str, int], *, in_bytes: bool) -> str | None:
    """Return the characters for which the model has no token, None if they cannot be listed."""
    from tokenizers import models

    model = backend.model
    if not isinstance(model, models.BPE):
        return None
    if in_bytes:
        lost = "".join(c for c in map(chr, range(0xC0)) if _last_byte(c) not in vocabulary)
        return lost if lost.isascii() else None  # other characters end with one of these bytes
    if model.byte_fallback:
        return "" if all(f"<0x{byte:02X}>" in vocabulary for byte in range(256)) else None
    return "" if model.unk_token in vocabulary and not model.fuse_unk else None


def _last_byte(character: str) -> str:
    """Return the last byte of a character as byte-level tokenizers write it."""
    from tokenizers import pre_tokenizers

    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    ((written, _),) = splitter.pre_tokenize_str(character)
    return str(written[-1])


def _state(component: Any) -> Json | None:
    if component is None:
        return None
    state: Json = json.loads(component.__getstate__())
    return state


def _parts(component: Json | None, children: str) -> Iterator[Json]:
    """Yield a component and all that it consists of."""
    if component is not None:
        yield component
        for child in component.get(children, ()):
            yield from _parts(child, children)
