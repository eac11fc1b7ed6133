"""Every family of decoders answers in batches as transformers' own `generate` does one by one.

Rows that have ended make place for others meanwhile.

Tiny random models from the configurations of transformers. Some need sizes of their own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from packaging.version import Version

import tiny_models
from grace.cnf import add_cnf
from grace.config import PaperSettings
from grace.engines import Sampling
from grace.engines.transformers import TransformersEngine
from grace.methods.paper.lora import target_modules

CLOSE = 1e-4
PLAIN = [
    "apertus", "arcee", "biogpt", "bitnet", "bloom", "cohere", "diffllama", "doge", "ernie4_5",
    "falcon", "gemma", "glm", "glm4", "glm4_moe", "gpt2", "gpt_neox", "granite", "mistral",
    "mpt", "nemotron", "olmo2", "olmoe", "opt", "persimmon", "phi", "phimoe", "qwen2_moe",
    "qwen3_moe", "seed_oss", "stablelm", "starcoder2", "vaultgemma", "xglm",
]  # fmt: skip
HALVES = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 16}
ONLY_STATES = {  # their cache is that of the others since transformers 5.24
    "falcon_mamba": {"state_size": 8},
    "mamba": {"state_size": 8},
    "mamba2": {"num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 2, "chunk_size": 8},
}  # fmt: skip
RUNNING = {"layer_types": ["linear_attention", "full_attention"]}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LATENT = {
    "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8,
    "num_key_value_heads": 4,
}  # fmt: skip
DEEPSEEK = {
    **LATENT, "head_dim": 4, "q_lora_rank": 8, "n_routed_experts": 4, "n_group": 1, "topk_group": 1,
    "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}  # fmt: skip
DELTA = {
    **RUNNING, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}  # fmt: skip
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_chunk_size": 8}
SIZED: dict[str, dict[str, Any]] = {
    "bamba": {**MAMBA, "attn_layer_indices": [1]},
    "cohere2": {"sliding_window": 16},
    "deepseek_v2": DEEPSEEK,
    "deepseek_v3": DEEPSEEK,
    "exaone4": {"sliding_window": 16, "sliding_window_pattern": 2},
    "falcon_h1": {**MAMBA, "mamba_d_ssm": 64},
    "gemma2": {"query_pre_attn_scalar": 8, "sliding_window": 16},
    "gemma3_text": {**HALVES, "query_pre_attn_scalar": 8},
    "gemma3n_text": {
        **HALVES, "layer_types": HALVES["layer_types"] * 2, "num_hidden_layers": 4,
        "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 8, "laurel_rank": 4,
        "altup_num_inputs": 2, "activation_sparsity_pattern": [0.0] * 4,
        "intermediate_size": [48] * 4, "vocab_size_per_layer_input": 320,
    },
    "gemma4_text": {},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16},
    "granitemoehybrid": {
        **MAMBA, **RUNNING, "num_local_experts": 0, "shared_intermediate_size": 48,
        "position_embedding_type": "rope",
    },
    "helium": {},
    "jamba": {
        "attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "num_experts": 2,
        "mamba_d_state": 8, "mamba_dt_rank": 8, "use_mamba_kernels": False,
    },
    "kimi_linear": {
        **LATENT, **RUNNING, "mlp_layer_types": ["dense", "dense"], "linear_head_dim": 8,
        "linear_num_heads": 4, "num_experts": 4, "moe_intermediate_size": 16,
    },
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "llama4_text": {
        "num_local_experts": 2, "intermediate_size_mlp": 48, "attention_chunk_size": 16,
    },
    "ministral": HALVES,
    "mixtral": {"num_local_experts": 4},
    "nemotron_h": {
        "layers_block_type": ["linear_attention", "full_attention"], "mamba_num_heads": 8,
        "mamba_head_dim": 8, "ssm_state_size": 8, "chunk_size": 8, "n_groups": 2,
    },
    "olmo3": HALVES,
    "qwen3": {},
    "qwen3_5_text": DELTA,
    "qwen3_next": {**DELTA, **EXPERTS, "shared_expert_intermediate_size": 16},
    "smollm3": {"no_rope_layers": [1, 0]},
}  # fmt: skip
VISION = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4,
}  # fmt: skip
SIGHT = {"hidden_size": 32, "intermediate_size": 48, "out_hidden_size": 32}
TURNS = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
TEXTS = {  # of those whose language model has a name or settings of its own
    "mistral3": {"model_type": "mistral"},
    "qwen2_5_vl": {"model_type": "qwen2_5_vl_text", "rope_parameters": TURNS},
    "qwen3_vl": {"model_type": "qwen3_vl_text", "rope_parameters": TURNS},
}
BESIDE_IMAGES: dict[str, dict[str, Any]] = {
    "gemma3": {"vision_config": {**VISION, "image_size": 28, "patch_size": 14}},
    "gemma4": {},
    "llama4": {"vision_config": VISION},
    "mistral3": {"vision_config": {**VISION, "model_type": "pixtral"}},
    "qwen2_5_vl": {"vision_config": {**SIGHT, "depth": 1, "num_heads": 4}},
    "qwen3_5": {},
    "qwen3_vl": {
        "vision_config": {**SIGHT, "depth": 1, "num_heads": 4, "deepstack_visual_indexes": [0]}
    },
}


def config(family: str) -> Any:
    """Return a small configuration of a family."""
    ids = {"vocab_size": 320, "bos_token_id": 1, "eos_token_id": 3, "pad_token_id": 0}
    sizes = {**tiny_models.SIZES, **tiny_models.GROUPED, **ids}
    if family in PLAIN:
        return transformers.AutoConfig.for_model(family, **sizes)
    if family in ONLY_STATES:
        small = {"hidden_size": 32, "num_hidden_layers": 2, **ids}
        return transformers.AutoConfig.for_model(family, **small, **ONLY_STATES[family])
    text = {**sizes, "head_dim": 8}
    if family in SIZED:
        return transformers.AutoConfig.for_model(family, **{**text, **SIZED[family]})
    name = f"{family}_text"
    text = {**text, **(TEXTS.get(family) or {"model_type": name, **SIZED[name]})}
    return transformers.AutoConfig.for_model(family, text_config=text, **BESIDE_IMAGES[family])


@pytest.mark.slow
@pytest.mark.parametrize("family", [*PLAIN, *SIZED, *ONLY_STATES, *BESIDE_IMAGES])
@pytest.mark.filterwarnings("ignore")  # of transformers
def test_batches_say_what_generate_says_one_by_one(family: str, tmp_path: Path) -> None:
    if family in ONLY_STATES and Version(transformers.__version__) < Version("5.24"):
        pytest.skip("transformers before 5.24 gives this family a cache of its own")
    torch.manual_seed(0)
    sees = family in TEXTS  # no class for the text alone
    auto = transformers.AutoModelForImageTextToText if sees else transformers.AutoModelForCausalLM
    auto.from_config(config(family), dtype=torch.float32).save_pretrained(tmp_path)
    tiny_models.tokenizer().save_pretrained(tmp_path)
    plain = TransformersEngine.load(tmp_path)
    model, tokenizer = plain.model, plain.tokenizer
    cnf = add_cnf(model, tokenizer)
    engine = TransformersEngine(model, tokenizer, batch_size=3)  # rows take the place of others
    lead = tiny_models.prompts(tokenizer, 4)[3][:20]  # read once for all
    prompts = [[*lead, *own] for own in tiny_models.prompts(tokenizer, 7)]
    made = [several[0] for _, several in sorted(engine.generate(prompts, Sampling(1, 0, 1, 12)))]
    for prompt, got in zip(prompts, made, strict=True):
        said = model.generate(
            torch.tensor([prompt]), max_new_tokens=12, do_sample=False, pad_token_id=0
        )[0, len(prompt) :].tolist()
        ends = [i for i, token in enumerate(said) if token in (3, *cnf.readout.ids)]
        assert list(got.token_ids) == said[: ends[0] if ends else None]
    reread = engine.confidences(prompts, [got.token_ids for got in made])
    for got, c in zip(made, reread, strict=True):
        assert got.confidence is None or got.confidence == pytest.approx(c, abs=CLOSE)
    answers = [got.token_ids or (7,) for got in made]
    together = engine.features(prompts, answers).mean_ND
    alone = [engine.features([p], [a]).mean_ND for p, a in zip(prompts, answers, strict=True)]
    np.testing.assert_allclose(together, np.concatenate(alone), rtol=0, atol=CLOSE)
    assert len(dict(engine.generate(prompts, Sampling(3, 1.0, 1.0, 12)))) == len(prompts)
    assert target_modules(model, PaperSettings().target_modules)
