"""The tokenizer that a proxy loads without torch is the model's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from grace.chat import encode_chat
from grace.engines.openai import load_tokenizer


@pytest.mark.shared
@pytest.mark.parametrize("name", ["SmolLM2-135M-Instruct", "gptneox-20B", "qwen2.5"])
def test_a_tokenizer_without_torch_is_the_one_of_the_model(
    shared: Path, name: str, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    usual = AutoTokenizer.from_pretrained(shared / "tokenizers" / name)
    usual.add_tokens(["<CNF>"], special_tokens=True)
    usual.save_pretrained(tmp_path)
    light = load_tokenizer(tmp_path)
    for text in ("Who wrote it?", " two  spaces\n", "naïve 東京 👩‍🚀", "<CNF> <|im_end|>", "12345"):
        chat: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}]
        ids = encode_chat(usual, chat)
        assert encode_chat(light, chat) == ids
        assert light.decode(ids, skip_special_tokens=True) == usual.decode(
            ids, skip_special_tokens=True
        )
    assert light.eos_token_id == usual.eos_token_id
    assert light.get_added_vocab() == usual.get_added_vocab()
