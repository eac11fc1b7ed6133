"""Tiny random models made from real architectures' configs, and a small real tokenizer.

The weights are wide enough (`initializer_range`) that the next-token distributions are peaked
and differ between contexts, and the EOS row is lengthened so that responses do end.
"""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL = ("<pad>", "<s>", "<|im_start|>", "<|im_end|>")
EOS = "<|im_end|>"
SENTENCES = (
    "Who wrote Middlemarch? George Eliot wrote it.",
    "What is the capital of France? Paris is the capital of France.",
    "Question: In which year did the war end?\nGuess: 1945",
    "The system answers what the user asks, and the assistant says how sure it is.",
)
ARCHITECTURES = ("llama_tied", "llama_untied", "qwen2", "phi3", "gpt_neox", "gemma2")
HYBRIDS = ("qwen3_5", "lfm2", "falcon_h1")  # part of their memory runs along the sequence
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "initializer_range": 0.25,
}
GROUPED = {"num_key_value_heads": 2}
SEEDS = {"gpt_neox": 1}  # of the random weights; with others no response would end
ENDING = {"gemma3": 20.0}  # scale of the row of EOS; 2.5 for other models
SPARE_ROWS = 7  # of qwen2, whose vocabulary is padded


@functools.cache
def _backend() -> str:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        show_progress=False,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    backend.train_from_iterator(SENTENCES, trainer)
    text: str = backend.to_str()
    return text


def tokenizer(*, chat_template: str | None = CHATML) -> Any:
    """Return a fresh byte-level BPE tokenizer with pad, BOS, EOS and role markers."""
    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_backend()),
        pad_token="<pad>",
        bos_token="<s>",
        eos_token=EOS,
    )
    made.chat_template = chat_template
    return made


def model(name: str) -> Any:
    """Return a fresh tiny model of one of the names in `_config`, in float32."""
    return copy.deepcopy(_model(name))


def prompts(tokenizer: Any, count: int = 16) -> list[list[int]]:
    """Return prompts of ragged lengths, the longest beyond Gemma's sliding window."""
    texts = [SENTENCES[i % len(SENTENCES)][: 3 + 11 * (i % 7)] for i in range(count)]
    return [tokenizer.encode(text) for text in texts]


@functools.cache
def _model(name: str) -> Any:
    rows = len(tokenizer())
    ids = {"vocab_size": rows, "bos_token_id": 1, "eos_token_id": 3, "pad_token_id": 0}
    config = _config(name, {**SIZES, **ids})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEEDS.get(name, 0))
        made = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        with torch.no_grad():
            made.get_output_embeddings().weight[3] *= ENDING.get(name, 2.5)
    return made.eval()


def _config(name: str, sizes: dict[str, Any]) -> Any:
    if name in ("llama_tied", "llama_untied"):
        return transformers.LlamaConfig(
            **sizes, **GROUPED, tie_word_embeddings=name == "llama_tied"
        )
    if name == "qwen2":
        sizes = {**sizes, "vocab_size": sizes["vocab_size"] + SPARE_ROWS}
        return transformers.Qwen2Config(**sizes, **GROUPED, tie_word_embeddings=False)
    if name == "mistral":
        return transformers.MistralConfig(**sizes, **GROUPED, sliding_window=16)
    if name == "qwen3":
        return transformers.Qwen3Config(**sizes, **GROUPED, head_dim=8, tie_word_embeddings=True)
    if name == "smollm3":
        return transformers.SmolLM3Config(**sizes, **GROUPED, no_rope_layers=[1, 0])
    if name == "phi3":
        return transformers.Phi3Config(**sizes, **GROUPED, tie_word_embeddings=False)
    if name == "gpt_neox":
        return transformers.GPTNeoXConfig(**sizes, tie_word_embeddings=False)
    if name in HYBRIDS:
        return _hybrid(name, {**sizes, **GROUPED, "head_dim": 8})
    sizes = {**sizes, **GROUPED, "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 16}
    if name == "gemma3":
        kinds = ["sliding_attention", "full_attention"]
        return transformers.Gemma3TextConfig(**sizes, layer_types=kinds, tie_word_embeddings=True)
    return transformers.Gemma2Config(
        **sizes,
        attn_logit_softcapping=50.0,
        final_logit_softcapping=30.0,
        tie_word_embeddings=True,
    )


def _hybrid(name: str, sizes: dict[str, Any]) -> Any:
    if name == "lfm2":
        return transformers.Lfm2Config(**sizes, layer_types=["conv", "full_attention"])
    if name == "falcon_h1":
        small = {"d_ssm": 64, "n_heads": 8, "d_head": 8, "d_state": 8, "chunk_size": 8}
        mamba = {f"mamba_{key}": value for key, value in small.items()}
        return transformers.FalconH1Config(**sizes, **mamba, tie_word_embeddings=False)
    heads = {"key_head_dim": 8, "value_head_dim": 8, "num_key_heads": 2, "num_value_heads": 4}
    return transformers.Qwen3_5TextConfig(
        **sizes,
        **{f"linear_{key}": value for key, value in heads.items()},
        layer_types=["linear_attention", "full_attention"],
        tie_word_embeddings=False,
    )
