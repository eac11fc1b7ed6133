"""From messages to token ids, so that text from a user is always text.

A chat template writes special tokens (role markers, end of turn). A user may write the same
strings, `<CNF>` among them. Only those of the template may become special ids; inside a content
they are encoded like any other characters.

How: the template is rendered once with placeholders for the contents, which shows what the
template itself wrote. Its special strings are replaced by secret aliases that a copy of the
tokenizer knows (`plain`); then that copy, told to treat every true special token as text, encodes
the whole chat in one go. Contents are thus encoded in place, with their real neighbours.

`context`, where it is given, is the model's: a text that certainly exceeds it is refused before it
is tokenised (`plain`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from grace.chat.plain import PlainTokenizer, plain_tokenizer
from grace.errors import DataError, ModelError
from grace.records import Message

ROLES = ("system", "user", "assistant", "text")
SWITCHES = ("enable_thinking", "thinking")
PLACEHOLDER = "\ue0f1"
PLACEHOLDERS = re.compile(f"{PLACEHOLDER}(\\d+){PLACEHOLDER}")


def has_chat_template(tokenizer: Any) -> bool:
    """Return whether the tokenizer comes with a chat template."""
    return bool(getattr(tokenizer, "chat_template", None))


def with_thinking(template: str, thinking: bool) -> str:
    """Return a chat template that has the model reason before it answers, or answer at once.

    One that knows neither `enable_thinking` (as Qwen3's) nor `thinking` (as Granite's) is returned
    as it is. The choice is part of the template, so whatever is saved with it, and every engine
    that renders it, asks in the same way.
    """
    known = [name for name in SWITCHES if re.search(rf"\b{name}\b", template)]
    choice = "true" if thinking else "false"
    return "".join(f"{{% set {name} = {choice} %}}" for name in known) + template


def encode_chat(
    tokenizer: Any, messages: Sequence[Message], *, context: int | None = None
) -> list[int]:
    """Return the token ids of a chat, up to where the assistant's answer starts.

    With a chat template the ids are those of `apply_chat_template(add_generation_prompt=True)`,
    except that a special token's string inside a content is plain text. Without one, the layout
    is system, blank line, user, newline, after the BOS that the tokenizer adds, if it adds one.
    A template that refuses a system turn gets the system text at the head of the first user turn.

    A turn of the role `text` stands for itself: the chat is then laid out as if there were no
    template, nothing follows that turn, and an answer to it comes after a space, with a newline.

    Raises:
        DataError: no message, or a role other than system, user, assistant and text.
        ModelError: the template refuses the messages, the tokenizer cannot split special tokens,
            or the chat is longer than the context.
    """
    _check(messages)
    plain = plain_tokenizer(tokenizer)
    if is_text(messages) or not has_chat_template(tokenizer):
        return encode_prompt(tokenizer, _written_out(messages), context=context)
    messages, rendered = _render_any(tokenizer, messages)
    plain.refuse_longer(rendered, context)
    skeleton = _render(tokenizer, _with_placeholders(messages))
    if _is_harmless(plain, messages, rendered, skeleton):
        return list(tokenizer(rendered, add_special_tokens=False)["input_ids"])
    literals, contents = _split(skeleton, messages)
    return plain.encode(_interleave(literals, _as_rendered(rendered, literals, contents)))


def is_text(messages: Sequence[Message]) -> bool:
    """Return whether a chat is plain text rather than turns for a template."""
    return any(message["role"] == "text" for message in messages)


def encode_response(
    tokenizer: Any, messages: Sequence[Message], text: str, *, context: int | None = None
) -> list[int]:
    """Return the token ids of a response to a chat, as it follows the chat's own ids.

    After a turn of the role `text` a response begins with the space that `encode_chat` leaves to
    it.

    Raises:
        ModelError: it is longer than the context.
    """
    lead = _lead(messages[-1]["content"]) if messages[-1]["role"] == "text" else ""
    spaced = text if text[:1].isspace() else lead + text
    return encode_text(tokenizer, spaced, context=context)


def encode_text(tokenizer: Any, text: str, *, context: int | None = None) -> list[int]:
    """Return the token ids of plain text: no special id for any string in it, no BOS.

    Raises:
        ModelError: it is longer than the context.
    """
    plain = plain_tokenizer(tokenizer)
    plain.refuse_longer(text, context)
    return plain.encode([(text, False)])


def encode_prompt(tokenizer: Any, text: str, *, context: int | None = None) -> list[int]:
    """Return the token ids of a raw prompt: plain text after the BOS, where there is one.

    Raises:
        ModelError: it is longer than the context.
    """
    return _bos(tokenizer) + encode_text(tokenizer, text, context=context)


def _check(messages: Sequence[Message]) -> None:
    if not messages:
        raise DataError("a chat has no message; give at least one from the user")
    for message in messages:
        if message["role"] not in ROLES:
            raise DataError(f"role {message['role']!r} is unknown; use one of {', '.join(ROLES)}")


def _written_out(messages: Sequence[Message]) -> str:
    """Return a chat without a template: one turn after the other."""
    text, after = "", ""
    for role, content in ((message["role"], message["content"]) for message in messages):
        lead = _lead(text) if (role, after) == ("assistant", "text") else ""
        text += lead + content + {"system": "\n\n", "text": ""}.get(role, "\n")
        after = role
    return text


def _lead(text: str) -> str:
    """Return what stands between a question written out as text and its answer."""
    return "" if text[-1:].isspace() else " "


def _bos(tokenizer: Any) -> list[int]:
    added = tokenizer("", add_special_tokens=True)["input_ids"]
    return [tokenizer.bos_token_id] if tokenizer.bos_token_id in added else []


def _render(tokenizer: Any, messages: Sequence[Message]) -> str:
    chat = [dict(message) for message in messages]
    text: str = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    return text


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
            raise ModelError(
                f"the chat template refuses these messages: {str(error).rstrip('.')}; correct the "
                "model's chat_template.jinja, or use data.prompt=text"
            ) from error


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
    plain: PlainTokenizer, messages: Sequence[Message], rendered: str, skeleton: str
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
