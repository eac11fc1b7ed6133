"""Encode messages as token ids, treating everything that a user writes as plain text.

A chat template writes special tokens (role markers, end of turn). A user may type the same strings,
`<CNF>` among them. Only the template's own become special ids; inside a message they are encoded
like any other characters.

To tell the two apart, the template is first rendered with placeholders in place of the messages.
What remains is what the template itself wrote. Its special strings are replaced by secret aliases
that a copy of the tokenizer recognises (`grace.chat.plain`). That copy treats every real special
token as text, and encodes the whole chat at once, so that the tokens of a message still depend on
the characters next to it.
"""

from __future__ import annotations

import contextlib
import copy
import datetime
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from grace.chat.plain import THINKING, PlainTokenizer, plain_tokenizer
from grace.errors import ConfigError, DataError, ModelError, first_line
from grace.records import Message

ROLES = ("system", "user", "assistant", "text")
SWITCHES = ("enable_thinking", "thinking")
PIECE = 2**13  # characters
MOST_PER_TOKEN = 4  # characters per token of the context; shorter texts are cheap to encode
AT_EDGES = 64  # tokens of a piece that the whole text may not have
PLACEHOLDER = "\ue0f1"
PLACEHOLDERS = re.compile(f"{PLACEHOLDER}(\\d+){PLACEHOLDER}")


def has_chat_template(tokenizer: Any) -> bool:
    """Return whether the tokenizer comes with a chat template."""
    return bool(getattr(tokenizer, "chat_template", None))


def with_thinking(template: str, thinking: bool) -> str:
    """Return a template with reasoning on or off, written into it, so that all engines agree."""
    switches = [name for name in SWITCHES if re.search(rf"\b{name}\b", template)]
    choice = "true" if thinking else "false"
    return "".join(f"{{% set {name} = {choice} %}}" for name in switches) + template


def answering_at_once(tokenizer: Any) -> Any:
    """Return a tokenizer like this one, whose chat template has reasoning switched off."""
    template = tokenizer.chat_template
    if not isinstance(template, str):  # there is none, or there are several
        return tokenizer
    switched_on = with_thinking(template, True).removesuffix(template)
    if not switched_on or not template.startswith(switched_on):
        return tokenizer
    quick = copy.copy(tokenizer)
    quick.chat_template = with_thinking(template.removeprefix(switched_on), False)
    return quick


def encode_chat(tokenizer: Any, messages: Sequence[Message]) -> list[int]:
    """Return the token ids of a chat, up to where the assistant's answer starts.

    With a chat template the ids are those of `apply_chat_template(add_generation_prompt=True)`,
    except that the string of a special token inside a message is plain text. Without a template,
    the layout is BOS (if the tokenizer adds one), system, blank line, user, newline. Where a
    template refuses or leaves out a system message, its text is put in front of the first user
    message.

    A message with the role `text` is a prompt without a template: the chat is laid out as plain
    text, nothing is added after that message, and an answer to it follows after a space.
    """
    _check(messages)
    plain = plain_tokenizer(tokenizer)
    if is_text(messages) or not has_chat_template(tokenizer):
        return encode_prompt(tokenizer, _without_template(messages))
    messages, rendered = _render_any(tokenizer, messages)
    marked = [
        Message(role=message["role"], content=f"{PLACEHOLDER}{i}{PLACEHOLDER}")
        for i, message in enumerate(messages)
    ]
    skeleton = _render(tokenizer, marked)
    _refuse_dropping(tokenizer, marked, skeleton)
    if ids := _harmless(tokenizer, plain, messages, rendered, skeleton):
        return ids
    return plain.encode(_parts(skeleton, rendered, messages))


def is_text(messages: Sequence[Message]) -> bool:
    """Return whether a chat is plain text, not turns for a template."""
    return any(message["role"] == "text" for message in messages)


def encode_response(tokenizer: Any, messages: Sequence[Message], text: str) -> list[int]:
    """Return the ids of a response; after a message with the role `text` it begins with a space."""
    space = _space_after(messages[-1]["content"]) if messages[-1]["role"] == "text" else ""
    spaced = text if not text or text[0].isspace() else space + text
    return encode_text(tokenizer, spaced)


def refuse_longer(tokenizer: Any, texts: Sequence[str], limit: int | None) -> None:
    """Refuse texts that exceed a context together, after reading about as much as fits into it."""
    if limit is None or sum(map(len, texts)) <= max(PIECE, MOST_PER_TOKEN * limit):
        return
    plain, count = plain_tokenizer(tokenizer), 0
    for text in texts:
        for start in range(0, len(text), PIECE):
            count += max(0, plain.count(text[start : start + PIECE]) - AT_EDGES)
            if count > limit:
                raise ModelError(
                    f"the text has over {limit} tokens, but the model's context is {limit}; "
                    "shorten it"
                )


def encode_text(tokenizer: Any, text: str) -> list[int]:
    """Return the token ids of plain text, without BOS and without special tokens.

    `<think>` and `</think>` are what a model writes itself: where they are ordinary added tokens,
    they stay these tokens, so that a response has the ids that it was generated with.
    """
    plain, parts = plain_tokenizer(tokenizer), THINKING.split(text)
    return plain.encode(
        [(part, at % 2 == 1 and part in plain.markers) for at, part in enumerate(parts)]
    )


def encode_prompt(tokenizer: Any, text: str) -> list[int]:
    """Return the token ids of a prompt without a template: BOS, if it is added, and the text."""
    added = tokenizer("", add_special_tokens=True)["input_ids"]
    bos = [tokenizer.bos_token_id] if tokenizer.bos_token_id in added else []
    return bos + encode_text(tokenizer, text)


def _check(messages: Sequence[Message]) -> None:
    if not messages:
        raise DataError("the chat has no message; give at least one with the role user")
    for message in messages:
        if message["role"] not in ROLES:
            raise DataError(f"role {message['role']!r} is unknown; use one of {', '.join(ROLES)}")


def _without_template(messages: Sequence[Message]) -> str:
    text, last_role = "", ""
    for message in messages:
        role = message["role"]
        space = _space_after(text) if (role, last_role) == ("assistant", "text") else ""
        text += space + message["content"] + {"system": "\n\n", "text": ""}.get(role, "\n")
        last_role = role
    return text


def _space_after(text: str) -> str:
    """Return the space between a prompt of the role `text` and its answer."""
    return "" if text[-1:].isspace() else " "


def _render(tokenizer: Any, messages: Sequence[Message]) -> str:
    chat = [dict(message) for message in messages]
    try:
        text: str = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    except Exception as error:  # a template is a program, and may fail in any way
        raise ModelError(
            f"the chat template refuses these messages: {first_line(error).rstrip('.')}; correct "
            "the model's chat_template.jinja, or use data.prompt=text"
        ) from error
    return text


def _render_any(tokenizer: Any, messages: Sequence[Message]) -> tuple[Sequence[Message], str]:
    """Return the messages and the text of a chat; without a system turn it is in the next one."""
    merged = _merge_system(messages)
    if merged == messages:
        return messages, _render(tokenizer, messages)
    system, *turns = messages
    other = Message(role="system", content=system["content"] + PLACEHOLDER)
    with contextlib.suppress(ModelError):
        rendered = _render(tokenizer, messages)
        if rendered != _render(tokenizer, [other, *turns]):
            return messages, rendered
    return merged, _render(tokenizer, merged)


def _merge_system(messages: Sequence[Message]) -> Sequence[Message]:
    if len(messages) < 2 or messages[0]["role"] != "system":
        return messages
    content = messages[0]["content"] + "\n\n" + messages[1]["content"]
    return [Message(role=messages[1]["role"], content=content), *messages[2:]]


def _refuse_dropping(tokenizer: Any, marked: Sequence[Message], skeleton: str) -> None:
    """Refuse a template that writes the same prompt whatever the user says last."""
    users = [i for i, message in enumerate(marked) if message["role"] == "user"]
    if not users or marked[users[-1]]["content"] in skeleton:
        return
    other = [*marked]
    other[users[-1]] = Message(role="user", content=f"{PLACEHOLDER}{len(marked)}{PLACEHOLDER}")
    if _render(tokenizer, other) == skeleton:
        raise ModelError(
            "the chat template leaves out the user's message, so every prompt would be the same; "
            "correct the model's chat_template.jinja, or use data.prompt=text"
        )


def _harmless(
    tokenizer: Any, plain: PlainTokenizer, messages: Sequence[Message], rendered: str, skeleton: str
) -> list[int]:
    """Return the ids of a rendered chat, empty unless all special ones are the template's own.

    Strings do not tell: a normalizer may turn a text into that of a special token. The tokens
    around thoughts do not count in a chat whose assistant thinks.
    """
    spoken = [_own_words(message) for message in messages]
    if any(plain.special.search(text) for text in spoken):
        return []
    ids, own = (_ids(tokenizer, text) for text in (rendered, skeleton))
    special = plain.forbidden
    if any(message["content"] != text for message, text in zip(messages, spoken, strict=True)):
        special -= plain.thinking
    return ids if [i for i in ids if i in special] == [i for i in own if i in special] else []


def _ids(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _own_words(message: Message) -> str:
    """Return a message, without the tokens around an assistant's thoughts, which it may write."""
    content = message["content"]
    return THINKING.sub("", content) if message["role"] == "assistant" else content


def _parts(skeleton: str, rendered: str, messages: Sequence[Message]) -> list[tuple[str, bool]]:
    """Return the pieces of a rendered chat, and for each whether the template wrote it."""
    pieces = PLACEHOLDERS.split(skeleton)
    literals, contents = pieces[::2], [messages[int(i)]["content"] for i in pieces[1::2]]
    parts = [(literals[0], True)]
    contents = _as_rendered(rendered, literals, contents)
    for content, literal in zip(contents, literals[1:], strict=True):
        parts += [(content, False), (literal, True)]
    return parts


def _as_rendered(rendered: str, literals: Sequence[str], contents: list[str]) -> list[str]:
    """Return the contents trimmed as the template trims them, unchanged if it did more to them."""
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


# --- token ids to text, one by one

UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # decoded from part of a character


class Detokenizer:
    """Decodes tokens as they arrive, each character once all of its bytes are there."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._start = 0  # tokens from here on are decoded together
        self._end = 0  # the text of tokens before this one has been returned

    def add(self, token: int) -> str:
        """Return the text that this token completes."""
        self._ids.append(token)
        text = self.rest()
        if not text or text.endswith(UNFINISHED):
            return ""
        self._start, self._end = self._end, len(self._ids)
        return text

    def rest(self) -> str:
        """Return the text held back, as it decodes if no token follows."""
        returned, text = self._text(self._end), self._text(len(self._ids))
        return text[len(returned) :]

    def _text(self, end: int) -> str:
        ids = self._ids[self._start : end]
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True)
        return text


def pieces(tokenizer: Any, ids: Iterable[int]) -> tuple[str, ...]:
    """Return the text that each token adds; joined, they are the text of all tokens."""
    detokenizer = Detokenizer(tokenizer)
    texts = [detokenizer.add(token) for token in ids]
    return (*texts[:-1], texts[-1] + detokenizer.rest()) if texts else ()


# --- a template that prints the date

_MARK = re.compile(r"\{# date (\d{4}-\d\d-\d\d) #\}")
_DIRECTIVE = re.compile(r"(?<!\{)%-?[A-Za-z]")


def today() -> str:
    """Return the date of today, such as 2026-11-26."""
    return datetime.date.today().isoformat()


def frozen_date(template: Any) -> str:
    """Return the date that `with_date` has written into a chat template, "" if none."""
    found = _MARK.search(template) if isinstance(template, str) else None
    return found[1] if found else ""


def with_date(template: str, date: str = "") -> str:
    """Return a template with a macro `strftime_now` of one date, which all engines render alike."""
    if not re.search(r"\bstrftime_now\b", template) or frozen_date(template):
        return template
    try:
        day = datetime.date.fromisoformat(date or today())
    except ValueError:
        raise ConfigError(f"model.date is {date!r}; write a day such as 2026-11-26") from None
    said = "format"
    for directive in dict.fromkeys(_DIRECTIVE.findall(template)):
        said += f" | replace({json.dumps(directive)}, {json.dumps(day.strftime(directive))})"
    macro = f"{{% macro strftime_now(format) %}}{{{{ {said} }}}}{{% endmacro %}}"
    return f"{{# date {day.isoformat()} #}}{macro}{template}"
