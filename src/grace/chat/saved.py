"""Load the tokenizer of a saved model without transformers, for clients of a server.

`SavedTokenizer` needs `tokenizers` and `jinja2` only. It has the methods of a transformers
tokenizer that a client needs, and returns the same ids.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from grace.errors import ModelError

if TYPE_CHECKING:
    from jinja2 import Template
    from tokenizers import AddedToken, Tokenizer

NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class SavedTokenizer:
    """The tokenizer in tokenizer.json, tokenizer_config.json and chat_template.jinja."""

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer

        file = folder / "tokenizer.json"
        if not file.is_file():
            raise ModelError(
                f"no {file.name} in {folder}; give what `grace export` wrote, or a run directory"
            )
        try:
            self.backend_tokenizer: Tokenizer = Tokenizer.from_file(str(file))
            settings = folder / "tokenizer_config.json"
            config = json.loads(settings.read_text("utf-8")) if settings.is_file() else {}
            named = {name: _text(config[name]) for name in NAMED if config.get(name)}
            self.chat_template = _chat_template(folder, config)
        except Exception as error:  # tokenizers raises bare ones
            raise ModelError(
                f"the tokenizer in {folder} cannot be read ({error}); copy it again from the export"
            ) from error
        self.backend_tokenizer.no_truncation()
        self.backend_tokenizer.no_padding()
        self.backend_tokenizer.add_special_tokens(list(named.values()))
        self._named = named
        ids = {name: self.backend_tokenizer.token_to_id(token) for name, token in named.items()}
        self.bos_token_id, self.eos_token_id = ids.get("bos_token"), ids.get("eos_token")
        self.unk_token_id = ids.get("unk_token")

    def __len__(self) -> int:
        return self.backend_tokenizer.get_vocab_size()

    @property
    def added_tokens_decoder(self) -> dict[int, AddedToken]:
        """Return the tokens that were added to the model's vocabulary, by id."""
        return self.backend_tokenizer.get_added_tokens_decoder()

    def get_added_vocab(self) -> dict[str, int]:
        """Return the ids of the added tokens, by their strings."""
        return {token.content: id for id, token in self.added_tokens_decoder.items()}

    def get_vocab(self) -> dict[str, int]:
        """Return the ids of all tokens, by their strings."""
        return self.backend_tokenizer.get_vocab()

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Return the text of token ids."""
        return self.backend_tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def __call__(self, text: str, *, add_special_tokens: bool = True) -> dict[str, list[int]]:
        """Return the `input_ids` of a text; strings of special tokens become their ids."""
        encoded = self.backend_tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return {"input_ids": encoded.ids}

    def apply_chat_template(
        self, chat: Sequence[dict[str, Any]], *, tokenize: bool, add_generation_prompt: bool
    ) -> str:
        """Return the text of a chat; `tokenize` must be False."""
        return compiled(self.chat_template or "").render(
            messages=chat,
            tools=None,
            documents=None,
            add_generation_prompt=add_generation_prompt,
            **self._named,
        )


def _text(token: Any) -> str:
    return str(token["content"] if isinstance(token, dict) else token)


def _chat_template(folder: Path, config: dict[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    template = file.read_text("utf-8") if file.is_file() else config.get("chat_template")
    if isinstance(template, list):
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    return template


@cache
def compiled(template: str) -> Template:
    """Compile a chat template in a sandbox, with the extensions and names of transformers."""
    import jinja2
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from jinja2.utils import Namespace

    class Generation(Extension):
        """`{% generation %}`, which marks the text to train on and is ignored here."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    class PublicNamespace(Namespace):
        """A namespace that refuses names with a leading underscore."""

        def __init__(*args: Any, **names: Any) -> None:  # `self` may be a name, too
            self, *values = args
            Namespace.__init__(self)
            for name, value in dict(*values, **names).items():
                self[name] = value

        def __setitem__(self, name: str, value: Any) -> None:
            if name.startswith("_"):
                raise_exception(f"a chat template must not set {name!r}")
            super().__setitem__(name, value)

    def raise_exception(message: str) -> NoReturn:
        raise jinja2.TemplateError(message)

    def to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    sandbox = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    sandbox.filters["tojson"] = to_json
    sandbox.globals |= {
        "raise_exception": raise_exception,
        "strftime_now": lambda form: datetime.datetime.now().strftime(form),
        "dict": lambda *values, **names: dict(*values, **names),
        "namespace": PublicNamespace,
    }
    return sandbox.from_string(template)
