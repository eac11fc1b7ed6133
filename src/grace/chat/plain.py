"""A copy of a tokenizer that reads special tokens as text, and knows secret aliases for them.

It also knows how long a text can be before it certainly has more tokens than a model takes:
tokenising a megabyte takes seconds. Where every character of a text ends up in some token, and a
token stands for at most L characters, a text of N characters has at least N / L tokens; that is
known without tokenising. Some tokenizers drop characters, or fuse unknown ones without end: for
them nothing is known beforehand.
"""

from __future__ import annotations

import json
import re
import secrets
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from grace.errors import ModelError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

ALIAS = f"\ue0f0{secrets.token_hex(16)}"  # no text holds it but by guessing 128 bits
Json = dict[str, Any]


class PlainTokenizer(NamedTuple):
    """The copy, and what it was made of."""

    backend: Tokenizer
    special: re.Pattern[str]  # any special token's string, the longest that fits
    aliases: dict[str, str]  # special token's string -> its alias
    real_ids: dict[int, int]  # alias id -> special id
    forbidden: frozenset[int]  # special ids; none may come out of text
    bound: Bound | None

    def encode(self, parts: Sequence[tuple[str, bool]]) -> list[int]:
        """Encode parts of one text; special strings count only where the flag is true."""
        text = "".join(
            self.special.sub(lambda match: self.aliases[match.group()], part) if trusted else part
            for part, trusted in parts
        )
        ids: list[int] = []
        for token in self._ids(text):
            if token in self.forbidden:
                ids += self._spell(token)
            else:
                ids.append(self.real_ids.get(token, token))
        return ids

    def refuse_longer(self, text: str, context: int | None) -> None:
        """Refuse a text that certainly has more tokens than a context, without tokenising it.

        Raises:
            ModelError: it has.
        """
        if context is None or self.bound is None:
            return
        least = self.bound.least_tokens(self.backend, text)
        if least > context:
            raise ModelError(
                f"the text has {len(text)} characters, so at least {least} tokens, but the "
                f"model's context is {context}; shorten it"
            )

    def _ids(self, text: str) -> list[int]:
        (encoded,) = self.backend.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoded.ids  # of a batch: other threads may run meanwhile
        return ids

    def _spell(self, token: int) -> list[int]:
        """Encode a special token's string character by character (its model knows it whole)."""
        word = self.backend.id_to_token(token) or ""
        ids = [i for char in word for i in self._ids(char)]
        if self.forbidden.intersection(ids):
            raise ModelError(
                f"the tokenizer cannot write {word!r} as text; remove it from the text"
            )
        return ids


_copies: weakref.WeakKeyDictionary[Any, tuple[int, PlainTokenizer]] = weakref.WeakKeyDictionary()
_copying = threading.Lock()


def plain_tokenizer(tokenizer: Any) -> PlainTokenizer:
    """Return the plain copy of a tokenizer, kept until its vocabulary changes.

    Raises:
        ModelError: it is not backed by the tokenizers library.
    """
    with _copying:
        size, copy = _copies.get(tokenizer, (None, None))
        if copy is None or size != len(tokenizer):
            copy = _copy(tokenizer)
            _copies[tokenizer] = (len(tokenizer), copy)
        return copy


def _copy(tokenizer: Any) -> PlainTokenizer:
    """Copy the backend, with one ordinary added token as the alias of each special one."""
    from tokenizers import AddedToken, Tokenizer

    if getattr(tokenizer, "backend_tokenizer", None) is None:
        kind = type(tokenizer).__name__
        raise ModelError(f"{kind} is not backed by the tokenizers library; save it as a fast one")
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.no_truncation()
    backend.no_padding()
    limit = bound(backend)  # before the aliases, which are long
    special = {i: t for i, t in tokenizer.added_tokens_decoder.items() if t.special}
    aliases = {token.content: f"{ALIAS}{i}\ue0f0" for i, token in special.items()}
    backend.add_tokens(
        [
            AddedToken(
                aliases[token.content],
                single_word=token.single_word,
                lstrip=token.lstrip,
                rstrip=token.rstrip,
                normalized=False,  # else a normalizer could change the alias itself
            )
            for token in special.values()
        ]
    )
    backend.encode_special_tokens = True
    vocabulary = {t.content: i for i, t in backend.get_added_tokens_decoder().items()}
    return PlainTokenizer(
        backend,
        re.compile(_any_of(aliases) or "(?!)"),
        aliases,
        {vocabulary[aliases[token.content]]: i for i, token in special.items()},
        frozenset(special) - {tokenizer.unk_token_id},
        limit,
    )


def _any_of(strings: Iterable[str]) -> str:
    """Return a regular expression for any of these strings, the longest that fits.

    At every character at most one branch goes on, so that a search takes time in proportion to the
    text, whatever it holds and however many strings there are.
    """
    tails: dict[str, list[str]] = {}
    ends = False
    for string in strings:
        ends = ends or not string
        if string:
            tails.setdefault(string[0], []).append(string[1:])
    branches = [re.escape(first) + _any_of(rest) for first, rest in tails.items()]
    if len(branches) == 1 and not ends:
        return branches[0]
    return f"(?:{'|'.join(branches)})" + "?" * ends if branches else ""


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
