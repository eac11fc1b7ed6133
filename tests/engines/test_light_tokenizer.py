"""The tokenizer that a client reads without transformers gives the ids that transformers gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jinja2
import pytest

from grace.chat import encode_chat, encode_response, encode_text
from grace.chat.saved import SavedTokenizer
from grace.errors import ModelError
from grace.pocket import MODEL_DIR
from tests import tiny_models

TEXTS = ("Who wrote it?", " two  spaces\n", "naïve 東京 👩‍🚀", "<CNF> <|im_end|> <|user|>", "12345")
SHARED = ["SmolLM2-135M-Instruct", "gptneox-20B", "qwen2.5"]


def check_equal(usual: Any, folder: Path) -> None:
    """Save a tokenizer of transformers with `<CNF>`, and compare what is read back."""
    usual.add_tokens(["<CNF>"], special_tokens=True)
    usual.save_pretrained(folder)
    light = SavedTokenizer(folder)
    for text in TEXTS:
        chat: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}]
        ids = encode_chat(usual, chat)
        assert encode_chat(light, chat) == ids
        assert encode_text(light, text) == encode_text(usual, text)
        assert encode_response(light, chat, text) == encode_response(usual, chat, text)
        for skip in (True, False):
            assert light.decode(ids, skip) == usual.decode(ids, skip_special_tokens=skip)
        for adds in (True, False):
            found = light(text, add_special_tokens=adds)["input_ids"]
            assert found == usual(text, add_special_tokens=adds)["input_ids"]
    for name in ("bos_token_id", "eos_token_id", "unk_token_id"):
        assert getattr(light, name) == getattr(usual, name)
    assert light.get_added_vocab() == usual.get_added_vocab()
    assert light.get_vocab() == usual.get_vocab() and len(light) == len(usual)


@pytest.mark.parametrize("template", [tiny_models.CHATML, None])
def test_the_light_tokenizer_of_a_small_model_is_that_of_transformers(
    template: str | None, tmp_path: Path
) -> None:
    check_equal(tiny_models.tokenizer(chat_template=template), tmp_path)


def test_the_light_tokenizer_of_the_pocket_is_that_of_transformers(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    check_equal(AutoTokenizer.from_pretrained(MODEL_DIR), tmp_path)


@pytest.mark.shared
@pytest.mark.parametrize("name", SHARED)
def test_the_light_tokenizer_of_a_real_model_is_that_of_transformers(
    shared: Path, name: str, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    check_equal(AutoTokenizer.from_pretrained(shared / "tokenizers" / name), tmp_path)


TEMPLATES = {
    "loops": "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m.content }}"
    "{% endfor %}",
    "namespaces": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
    "{% endfor %}{{ ns.n }}{{ dict(a=1) | tojson }}",
    "JSON": "{{ messages | tojson(indent=2) }}{{ 'é<' | tojson }}{{ bos_token }}",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}"
    "{% endfor %}{% if add_generation_prompt and not tools %}>{% endif %}",
    "dates": "{{ strftime_now('%Y-%m-%d') }}",
    "blocks": "  {%- for m in messages %}\n    {{- m.role }}\n    {% endfor %}\n",
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_what_chat_templates_use_means_what_it_means_to_transformers(
    name: str, tmp_path: Path
) -> None:
    usual = tiny_models.tokenizer(chat_template=TEMPLATES[name])
    usual.save_pretrained(tmp_path)
    chat = [{"role": "user", "content": "What?"}, {"role": "assistant", "content": "That."}]
    shown = SavedTokenizer(tmp_path).apply_chat_template(
        chat, tokenize=False, add_generation_prompt=True
    )
    assert shown == usual.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('no system turn') }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ namespace(_x=1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
    ],
)
def test_a_chat_template_is_sandboxed(template: str, tmp_path: Path) -> None:
    tiny_models.tokenizer(chat_template=template).save_pretrained(tmp_path)
    with pytest.raises(jinja2.TemplateError):
        SavedTokenizer(tmp_path).apply_chat_template(
            [{"role": "user", "content": "x"}], tokenize=False, add_generation_prompt=True
        )


def test_the_default_of_several_templates_and_tokens_written_out_are_read(tmp_path: Path) -> None:
    tiny_models.tokenizer(chat_template=None).save_pretrained(tmp_path)
    file = tmp_path / "tokenizer_config.json"
    config = json.loads(file.read_text())
    end = config["eos_token"]
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]
    file.write_text(json.dumps({"chat_template": named, "eos_token": {"content": end}}))
    light = SavedTokenizer(tmp_path)
    assert light.chat_template == "yes"
    assert light.eos_token_id == light.get_vocab()[end] and light.bos_token_id is None


def test_a_tokenizer_that_cannot_be_read_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no tokenizer.json in .*; give what `grace export`"):
        SavedTokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="cannot be read"):
        SavedTokenizer(tmp_path)
