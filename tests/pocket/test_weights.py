"""The shipped weights: those of the recipe, as good as the recipe says, loadable everywhere."""

from __future__ import annotations

import json
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from grace.pocket import MODEL_DIR  # noqa: E402
from grace.store import digest  # noqa: E402
from tools.pocket import TASKS  # noqa: E402
from tools.pocket.build import load  # noqa: E402
from tools.pocket.check import (  # noqa: E402
    answered_right,
)
from tools.pocket.prompts import STEP_SYSTEM  # noqa: E402
from tools.pocket.tokens import SPECIAL_TOKENS  # noqa: E402
from tools.pocket.world import World  # noqa: E402

NUM_ASKED = 25
TOLERANCE = 0.3  # three standard errors of a share over 25 questions


@pytest.fixture(scope="module")
def recipe() -> dict[str, Any]:
    return json.loads((MODEL_DIR / "recipe.json").read_text())


@pytest.fixture(scope="module")
def pocket():
    return load(MODEL_DIR)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_the_shipped_files_have_the_recorded_digests(recipe: dict[str, Any], name: str) -> None:
    assert digest(MODEL_DIR / name) == recipe["sha256"][name]


def test_its_widths_are_those_that_vllm_and_llama_cpp_take() -> None:
    config = json.loads((MODEL_DIR / "config.json").read_text())
    assert config["head_dim"] in (32, 64)
    assert config["hidden_size"] % 32 == config["intermediate_size"] % 32 == 0


@pytest.mark.parametrize("task", TASKS)
def test_greedy_accuracy_is_the_recorded_one(recipe, pocket, task: str) -> None:
    right = answered_right(*pocket, World.build(recipe["seed"]), task, "test", NUM_ASKED)
    assert sum(right) / NUM_ASKED == pytest.approx(
        recipe["greedy_test_accuracy"][task], abs=TOLERANCE
    )


def test_the_auto_classes_load_it_without_network_or_remote_code() -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL_DIR, local_files_only=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL_DIR, local_files_only=True)
    assert type(model).__name__ == "LlamaForCausalLM"
    assert not model.config.tie_word_embeddings
    assert len(tokenizer) == model.config.vocab_size == model.lm_head.weight.shape[0]
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id


def test_digits_are_single_tokens_and_answers_are_several(pocket) -> None:
    _, tokenizer = pocket
    assert len(tokenizer.tokenize("1234")) == 4
    rows = World.build(0).questions("pocket_places", "test")
    lengths = [len(tokenizer.tokenize(row["answers"][0])) for row in rows]
    assert sum(lengths) / len(lengths) > 2.5


def test_there_is_no_confidence_token_yet(pocket) -> None:
    _, tokenizer = pocket
    assert "<CNF>" not in tokenizer.get_vocab()


def test_the_chat_template_renders_three_roles_and_refuses_others(pocket) -> None:
    _, tokenizer = pocket
    turns = [("system", STEP_SYSTEM), ("user", "Hi"), ("assistant", "Ho")]
    chat = [{"role": role, "content": text} for role, text in turns]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text == (
        f"<|bos|><|system|>{STEP_SYSTEM}<|end|><|user|>Hi<|end|><|assistant|>Ho<|end|><|assistant|>"
    )
    with pytest.raises(Exception, match="roles are"):
        tokenizer.apply_chat_template([{"role": "tool", "content": ""}], tokenize=False)


def test_special_tokens_are_never_put_together_from_plain_text(pocket) -> None:
    _, tokenizer = pocket
    for token in SPECIAL_TOKENS:
        plain = tokenizer(token, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        assert not set(plain) & set(tokenizer.all_special_ids)
