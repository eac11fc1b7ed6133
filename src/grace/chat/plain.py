"""A copy of a tokenizer that encodes special tokens as text, and has secret aliases for them.

As special counts every added token that is marked so or that the chat template writes: DeepSeek's
role markers, for example, are ordinary added tokens.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from grace.errors import ModelError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

THINKING = re.compile("(</?think>)")  # what a model writes itself
ALIAS = f"\ue0f0{secrets.token_hex(16)}"  # to write it into a text, one would guess 128 bits
Json = dict[str, Any]


class PlainTokenizer(NamedTuple):
    """A copy of a tokenizer that keeps text from becoming special tokens."""

    backend: Tokenizer  # the copy, with one added token per alias
    special: re.Pattern[str]  # matches the string of any, the longest first
    aliases: dict[str, str]  # of the string of each special token
    real_ids: dict[int, int]  # of the special token behind each alias's id
    forbidden: frozenset[int]  # ids of special tokens, which no plain text is encoded as
    thinking: frozenset[int]  # ids of the tokens around thoughts that the template writes
    markers: frozenset[str]  # strings that count as special since the template writes them

    def encode(self, parts: Sequence[tuple[str, bool]]) -> list[int]:
        """Encode the parts of one text; special tokens count in trusted parts only."""
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

    def count(self, text: str) -> int:
        """Return the number of tokens of a text, or fewer where it spells special tokens."""
        return len(self._ids(text))

    def _ids(self, text: str) -> list[int]:
        # A batch of one, since only batches let other threads run meanwhile.
        (encoded,) = self.backend.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoded.ids
        return ids

    def _spell(self, token: int) -> list[int]:
        """Encode a special token's string character by character, where BPE merges it to the id."""
        word = self.backend.id_to_token(token) or ""
        ids = [i for char in word for i in self._ids(char)]
        if self.forbidden.intersection(ids):
            raise ModelError(
                f"the tokenizer cannot encode {word!r} as plain text; remove it from the text"
            )
        return ids


_copies: weakref.WeakKeyDictionary[Any, tuple[Any, PlainTokenizer]] = weakref.WeakKeyDictionary()
_copying = threading.Lock()


def plain_tokenizer(tokenizer: Any) -> PlainTokenizer:
    """Return the plain copy of a tokenizer, cached until the vocabulary or the template changes."""
    with _copying:
        made_of, copy = _copies.get(tokenizer, (None, None))
        now = len(tokenizer), str(getattr(tokenizer, "chat_template", None))
        if copy is None or made_of != now:
            copy = _copy(tokenizer)
            _copies[tokenizer] = (now, copy)
        return copy


def _copy(tokenizer: Any) -> PlainTokenizer:
    from tokenizers import AddedToken, Tokenizer

    if getattr(tokenizer, "backend_tokenizer", None) is None:
        kind = type(tokenizer).__name__
        raise ModelError(
            f"{kind} is not backed by the tokenizers library; save the tokenizer as a fast one"
        )
    added = tokenizer.added_tokens_decoder
    written = _written(tokenizer)
    special = {i: t for i, t in added.items() if t.special or _is_marker(t.content, written)}
    markers = frozenset(t.content for t in special.values() if not t.special)
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    for entry in content["added_tokens"]:
        entry["special"] = entry["special"] or entry["content"] in markers
    backend = Tokenizer.from_str(json.dumps(content))
    backend.no_truncation()
    backend.no_padding()
    aliases = {token.content: f"{ALIAS}{i}\ue0f0" for i, token in special.items()}
    backend.add_tokens(
        [
            AddedToken(
                aliases[token.content],
                single_word=token.single_word,
                lstrip=token.lstrip,
                rstrip=token.rstrip,
                normalized=False,  # otherwise a normalizer could change the alias
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
        frozenset(i for i, token in special.items() if THINKING.match(token.content)),
        markers,
    )


def _is_marker(string: str, written: str) -> bool:
    """Return whether an added token is a marker of the chat template, not a word or white space."""
    return string in written and not string.isspace() and not string.isalnum()


def _written(tokenizer: Any) -> str:
    """Return all that a chat template writes: its source, and a chat, where it puts it together."""
    template = getattr(tokenizer, "chat_template", None)
    if not template:
        return ""
    turns = [{"role": role, "content": "-"} for role in ("system", "user", "assistant", "user")]
    chats = [str(template)]
    for chat in (turns, turns[1:]):  # some templates refuse a system turn
        with contextlib.suppress(Exception):  # a template is a program, and may fail in any way
            options = {"tokenize": False, "add_generation_prompt": True}
            chats.append(tokenizer.apply_chat_template(chat, **options))
    return "\n".join(chats)


def _any_of(strings: Iterable[str]) -> str:
    """Return a pattern of the longest of some strings, a trie: the search is linear in the text."""
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
