"""From messages to token ids, so that text from a user is always text.

A chat template writes special tokens (role markers, end of turn). A user may write the same
strings, `<CNF>` among them. Only those of the template may become special ids; inside a content
they are encoded like any other characters.

How: the template is rendered once with placeholders for the contents, which shows what the
template itself wrote. Its special strings are replaced by private aliases that a copy of the
tokenizer knows; then that copy, told to treat every true special token as text, encodes the
whole chat in one go. Contents are thus encoded in place, with their real neighbours.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from grace.errors import DataError, ModelError
from grace.records import Message

if TYPE_CHECKING:
    from tokenizers import Tokenizer

ROLES = ("system", "user", "assistant")
ALIAS, PLACEHOLDER = "\ue0f0", "\ue0f1"  # private-use characters, repeated until none collides
PLACEHOLDERS = re.compile(f"{PLACEHOLDER}(\\d+){PLACEHOLDER}")


def has_chat_template(tokenizer: Any) -> bool:
    """Return whether the tokenizer comes with a chat template."""
    return bool(getattr(tokenizer, "chat_template", None))


def encode_chat(tokenizer: Any, messages: Sequence[Message]) -> list[int]:
    """Return the token ids of a chat, up to where the assistant's answer starts.

    With a chat template the ids are those of `apply_chat_template(add_generation_prompt=True)`,
    except that a special token's string inside a content is plain text. Without one, the layout
    is system, blank line, user, newline, after the BOS that the tokenizer adds, if it adds one.
    A template that refuses a system turn gets the system text at the head of the first user turn.

    Raises:
        DataError: no message, or a role other than system, user and assistant.
        ModelError: the template refuses the messages, or the tokenizer cannot split special
            tokens.
    """
    _check(messages)
    plain = _plain_tokenizer(tokenizer, _alias_for([message["content"] for message in messages]))
    if not has_chat_template(tokenizer):
        text = "".join(m["content"] + ("\n\n" if m["role"] == "system" else "\n") for m in messages)
        return _bos(tokenizer) + plain.encode([(text, False)])
    messages, rendered = _render_any(tokenizer, messages)
    skeleton = _render(tokenizer, _with_placeholders(messages))
    if _is_harmless(plain, messages, rendered, skeleton):
        return _template_ids(tokenizer, messages)
    literals, contents = _split(skeleton, messages)
    return plain.encode(_interleave(literals, _as_rendered(rendered, literals, contents)))


def encode_text(tokenizer: Any, text: str) -> list[int]:
    """Return the token ids of plain text: no special id for any string in it, no BOS."""
    return _plain_tokenizer(tokenizer, _alias_for([text])).encode([(text, False)])


def encode_prompt(tokenizer: Any, text: str) -> list[int]:
    """Return the token ids of a raw prompt: plain text after the BOS, where there is one."""
    return _bos(tokenizer) + encode_text(tokenizer, text)


class _PlainTokenizer(NamedTuple):
    """A copy of a tokenizer that reads special tokens as text and knows aliases for them."""

    backend: Tokenizer
    special: re.Pattern[str]  # any special token's string, longest first
    aliases: dict[str, str]  # special token's string -> its alias
    real_ids: dict[int, int]  # alias id -> special id
    forbidden: frozenset[int]  # special ids; none may come out of text

    def encode(self, parts: Sequence[tuple[str, bool]]) -> list[int]:
        """Encode parts of one text; special strings count only where the flag is true."""
        text = "".join(
            self.special.sub(lambda match: self.aliases[match.group()], part) if trusted else part
            for part, trusted in parts
        )
        ids: list[int] = []
        for token in self.backend.encode(text, add_special_tokens=False).ids:
            if token in self.forbidden:
                ids += self._spell(token)
            else:
                ids.append(self.real_ids.get(token, token))
        return ids

    def _spell(self, token: int) -> list[int]:
        """Encode a special token's string character by character (its model knows it whole)."""
        word = self.backend.id_to_token(token) or ""
        ids = [i for char in word for i in self.backend.encode(char, add_special_tokens=False).ids]
        if self.forbidden.intersection(ids):
            raise ModelError(
                f"the tokenizer cannot write {word!r} as text; remove it from the text"
            )
        return ids


_copies: weakref.WeakKeyDictionary[Any, tuple[int, _PlainTokenizer]] = weakref.WeakKeyDictionary()


def _plain_tokenizer(tokenizer: Any, alias: str) -> _PlainTokenizer:
    """Return the plain copy of a tokenizer, kept until its vocabulary changes."""
    if alias != ALIAS:
        return _copy(tokenizer, alias)
    size, copy = _copies.get(tokenizer, (None, None))
    if copy is None or size != len(tokenizer):
        copy = _copy(tokenizer, alias)
        _copies[tokenizer] = (len(tokenizer), copy)
    return copy


def _copy(tokenizer: Any, alias: str) -> _PlainTokenizer:
    """Copy the backend, with one ordinary added token as the alias of each special one."""
    from tokenizers import AddedToken, Tokenizer

    if getattr(tokenizer, "backend_tokenizer", None) is None:
        kind = type(tokenizer).__name__
        raise ModelError(f"{kind} is not backed by the tokenizers library; save it as a fast one")
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.no_truncation()
    backend.no_padding()
    special = {i: t for i, t in tokenizer.added_tokens_decoder.items() if t.special}
    aliases = {token.content: f"{alias}{i}{alias}" for i, token in special.items()}
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
    longest_first = sorted(aliases, key=len, reverse=True)
    return _PlainTokenizer(
        backend,
        re.compile("|".join(map(re.escape, longest_first)) or "(?!)"),
        aliases,
        {vocabulary[aliases[token.content]]: i for i, token in special.items()},
        frozenset(special) - {tokenizer.unk_token_id},
    )


def _check(messages: Sequence[Message]) -> None:
    if not messages:
        raise DataError("a chat has no message; give at least one from the user")
    for message in messages:
        if message["role"] not in ROLES:
            raise DataError(f"role {message['role']!r} is unknown; use one of {', '.join(ROLES)}")


def _alias_for(texts: Sequence[str]) -> str:
    """Return an alias mark that none of the texts contains, so that no text can forge one."""
    mark = ALIAS
    while any(mark in text for text in texts):
        mark += ALIAS
    return mark


def _bos(tokenizer: Any) -> list[int]:
    added = tokenizer("", add_special_tokens=True)["input_ids"]
    return [tokenizer.bos_token_id] if tokenizer.bos_token_id in added else []


def _render(tokenizer: Any, messages: Sequence[Message]) -> str:
    chat = [dict(message) for message in messages]
    text: str = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    return text


def _template_ids(tokenizer: Any, messages: Sequence[Message]) -> list[int]:
    chat = [dict(message) for message in messages]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    return list(ids)


def _render_any(tokenizer: Any, messages: Sequence[Message]) -> tuple[Sequence[Message], str]:
    """Render the chat; where the template refuses a system turn, merge it into the user's."""
    from jinja2 import TemplateError

    try:
        return messages, _render(tokenizer, messages)
    except TemplateError as error:
        merged = _merge_system(messages)
        try:
            return merged, _render(tokenizer, merged)
        except TemplateError:
            raise ModelError(f"the chat template refuses these messages: {error}") from error


def _merge_system(messages: Sequence[Message]) -> Sequence[Message]:
    if len(messages) < 2 or messages[0]["role"] != "system":
        return messages
    content = messages[0]["content"] + "\n\n" + messages[1]["content"]
    return [Message(role=messages[1]["role"], content=content), *messages[2:]]


def _with_placeholders(messages: Sequence[Message]) -> list[Message]:
    return [
        Message(role=message["role"], content=f"{PLACEHOLDER}{i}{PLACEHOLDER}")
        for i, message in enumerate(messages)
    ]


def _is_harmless(
    plain: _PlainTokenizer, messages: Sequence[Message], rendered: str, skeleton: str
) -> bool:
    """Return whether every special string in the rendered chat is the template's own."""
    if any(plain.special.search(message["content"]) for message in messages):
        return False
    return plain.special.findall(rendered) == plain.special.findall(skeleton)


def _split(skeleton: str, messages: Sequence[Message]) -> tuple[list[str], list[str]]:
    """Return what the template wrote around the contents, and the contents in its order."""
    pieces = PLACEHOLDERS.split(skeleton)
    return pieces[::2], [messages[int(i)]["content"] for i in pieces[1::2]]


def _as_rendered(rendered: str, literals: Sequence[str], contents: Sequence[str]) -> Sequence[str]:
    """Return the contents as the template trimmed them, or unchanged if it did more to them."""
    at, forms = len(literals[0]), []
    for content, literal in zip(contents, literals[1:], strict=True):
        for form in (content, content.strip(), content.rstrip(), content.lstrip()):
            if rendered.startswith(form + literal, at):
                break
        else:
            return contents
        forms.append(form)
        at += len(form) + len(literal)
    return forms


def _interleave(literals: Sequence[str], contents: Sequence[str]) -> list[tuple[str, bool]]:
    parts = [(literals[0], True)]
    for content, literal in zip(contents, literals[1:], strict=True):
        parts += [(content, False), (literal, True)]
    return parts
