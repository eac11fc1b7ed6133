"""What a row of the output head adds to a logit, however a model scales or changes its states."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

import tiny_models
from grace.engines.local.forward import Forward, head_shape
from grace.engines.local.loading import head_in_float32
from grace.errors import ModelError

SCALES: dict[str, tuple[dict[str, Any], float]] = {
    "llama": ({}, 1.0),
    "gemma2": ({"head_dim": 8, "final_logit_softcapping": 20.0}, 1.0),
    "granite": ({"logits_scaling": 6.0}, 1 / 6),
    "cohere": ({"logit_scale": 0.3}, 0.3),
    "hyperclovax": ({"logits_scaling": 4.0}, 4.0),
    "minicpm3": ({
            "dim_model_base": 8, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4,
            "qk_nope_head_dim": 8, "v_head_dim": 8, "num_key_value_heads": 4, "head_dim": 4,
        }, 0.25),
    "falcon_h1": (
        {
            "lm_head_multiplier": 0.0390625, "head_dim": 8, "mamba_n_heads": 8, "mamba_d_head": 8,
            "mamba_d_state": 8, "mamba_d_ssm": 64, "mamba_chunk_size": 8,
        },
        0.0390625,
    ),
}  # fmt: skip
NAMED = ("llama", "gemma2", "granite", "cohere", "minicpm3")  # whose number is taken as it is
IDS = torch.tensor([[5, 9, 30, 200]])


def made(family: str, **options: Any) -> Any:
    if family not in transformers.CONFIG_MAPPING:
        pytest.skip("this version of transformers does not know the family")
    sizes = {**tiny_models.SIZES, **tiny_models.GROUPED, "vocab_size": 320, "pad_token_id": 0}
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **{**sizes, **options})
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("family", SCALES)
@torch.inference_mode()
def test_a_logit_is_the_product_of_row_and_state_times_the_scale(family: str, half: bool) -> None:
    options, scale = SCALES[family]
    model = made(family, tie_word_embeddings=False, **options)
    if half:
        model = model.to(torch.bfloat16)
        head_in_float32(model)
    shape = head_shape(model, 300)
    assert shape.scale == (scale if family in NAMED else pytest.approx(scale, rel=1e-6))
    forward, place = Forward(model), torch.arange(4)[None]
    logits, _ = forward(IDS, None, place, keep=4)
    products = forward.states(IDS, None, place).float() @ model.lm_head.weight.float().T
    wanted = shape.scale * products
    if shape.capped:
        wanted = 20 * (wanted / 20).tanh()
    torch.testing.assert_close(logits, wanted, atol=0.1 if half else 1e-4, rtol=0.02)
    assert shape.capped == (family == "gemma2")
    assert shape.mean_D == pytest.approx(model.lm_head.weight[:300].float().mean(0).numpy())


def test_a_head_that_does_not_read_the_last_states_is_refused() -> None:
    model = made("modernbert-decoder", local_attention=16)
    with pytest.raises(ModelError, match="something other than the last hidden states"):
        head_shape(model, 300)
