"""The tokenizer of a saved model, by `tokenizers` and `jinja2` alone: for where no model is loaded.

It has those methods of a tokenizer of transformers that a client needs, and gives the same ids.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from grace.errors import ModelError

if TYPE_CHECKING:
    from jinja2 import Template
    from tokenizers import AddedToken, Tokenizer

NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class SavedTokenizer:
    """What tokenizer.json, tokenizer_config.json and chat_template.jinja of a directory say.

    Raises:
        ModelError: there is no tokenizer.json, or one of the files cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer

        file = folder / "tokenizer.json"
        if not file.is_file():
            raise ModelError(
                f"no {file.name} in {folder}; give what `grace export` wrote, or a run"
            )
        try:
            self.backend_tokenizer: Tokenizer = Tokenizer.from_file(str(file))
            config = _read_json(folder / "tokenizer_config.json")
            named = {name: _text(config[name]) for name in NAMED if config.get(name)}
            self.chat_template = _chat_template(folder, config)
        except Exception as error:  # tokenizers raises bare ones
            raise ModelError(f"the tokenizer in {folder} cannot be read ({error})") from error
        self.backend_tokenizer.no_truncation()
        self.backend_tokenizer.no_padding()
        self.backend_tokenizer.add_special_tokens(list(named.values()))
        self._named = named

    def __len__(self) -> int:
        return self.backend_tokenizer.get_vocab_size()

    @property
    def bos_token_id(self) -> int | None:
        """Return the id of the token that begins a text, None without one."""
        return self._id("bos_token")

    @property
    def eos_token_id(self) -> int | None:
        """Return the id of the token that ends a text, None without one."""
        return self._id("eos_token")

    @property
    def unk_token_id(self) -> int | None:
        """Return the id of the token for what has none, None without one."""
        return self._id("unk_token")

    @property
    def added_tokens_decoder(self) -> dict[int, AddedToken]:
        """Return the tokens that were added to the model's vocabulary, by id."""
        return self.backend_tokenizer.get_added_tokens_decoder()

    def get_added_vocab(self) -> dict[str, int]:
        """Return the ids of the added tokens, by their text."""
        return {token.content: id for id, token in self.added_tokens_decoder.items()}

    def get_vocab(self) -> dict[str, int]:
        """Return the id of every token, by its text."""
        return self.backend_tokenizer.get_vocab()

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Return the text of token ids."""
        return self.backend_tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def __call__(self, text: str, *, add_special_tokens: bool = True) -> dict[str, list[int]]:
        """Return the `input_ids` of a text, in which special tokens count."""
        encoded = self.backend_tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return {"input_ids": encoded.ids}

    def apply_chat_template(
        self, chat: Sequence[dict[str, Any]], *, tokenize: bool, add_generation_prompt: bool
    ) -> str:
        """Return the text of a chat; `tokenize` is False.

        Raises:
            jinja2.TemplateError: the template refuses the chat.
        """
        return self._template.render(
            messages=chat,
            tools=None,
            documents=None,
            add_generation_prompt=add_generation_prompt,
            **self._named,
        )

    def _id(self, name: str) -> int | None:
        return (
            self.backend_tokenizer.token_to_id(self._named[name]) if name in self._named else None
        )

    @cached_property
    def _template(self) -> Template:
        return _compiled(self.chat_template or "")


def _read_json(file: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    return content


def _text(token: Any) -> str:
    return str(token["content"] if isinstance(token, dict) else token)


def _chat_template(folder: Path, config: dict[str, Any]) -> str | None:
    """Return the chat template: the file's, else the configuration's only or default one."""
    file = folder / "chat_template.jinja"
    found = file.read_text("utf-8") if file.is_file() else config.get("chat_template")
    if isinstance(found, list):
        found = {entry["name"]: entry["template"] for entry in found}.get("default")
    return found


def _compiled(template: str) -> Template:
    """Compile a chat template as transformers does: sandboxed, since a model brings it."""
    import jinja2
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from jinja2.utils import Namespace

    class Generation(Extension):
        """`{% generation %}` marks what training learns; here it means nothing."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    class Kept(Namespace):
        """A namespace without names that Python gives a meaning to."""

        def __init__(*args: Any, **names: Any) -> None:
            self, *given = args
            Namespace.__init__(self)
            for name, value in dict(*given, **names).items():
                self[name] = value

        def __setitem__(self, name: str, value: Any) -> None:
            if name.startswith("_"):
                refuse(f"a chat template must not set {name!r}")
            super().__setitem__(name, value)

    def refuse(message: str) -> NoReturn:
        raise jinja2.TemplateError(message)

    def to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    sandbox = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    sandbox.filters["tojson"] = to_json
    sandbox.globals |= {
        "raise_exception": refuse,
        "strftime_now": lambda form: datetime.datetime.now().strftime(form),
        "dict": lambda *given, **names: dict(*given, **names),
        "namespace": Kept,
    }
    return sandbox.from_string(template)
