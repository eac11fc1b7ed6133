from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import tiny_models
from grace.cnf import Readout, add_cnf, find_readout
from grace.engines import Sampling
from grace.engines.local.forward import Unread
from grace.engines.local.loading import head_in_float32
from grace.engines.transformers import TransformersEngine
from grace.errors import ModelError
from grace.methods.paper.lora import light_rows
from tiny_lora import write

every_architecture = pytest.mark.parametrize("tiny", tiny_models.ARCHITECTURES, indirect=True)
quiet_peft = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
PROMPTS = [[10, 11, 12, 13], [20, 21]]
RESPONSES = [[30, 31], [40]]


@every_architecture
@quiet_peft
def test_a_loaded_adapter_gives_the_c_of_the_model_that_was_trained(tiny, tmp_path):
    base, adapter, trained = write(*tiny, tmp_path, read_at="feed")
    loaded = TransformersEngine.load(base, adapter=adapter)
    assert (loaded.reader.cnf, loaded.read_at, loaded.reader.stops) == (
        trained.reader.cnf,
        "feed",
        trained.reader.stops,
    )
    assert loaded.confidences(PROMPTS, RESPONSES) == pytest.approx(
        trained.confidences(PROMPTS, RESPONSES), abs=1e-5
    )
    np.testing.assert_allclose(
        loaded.features(PROMPTS, RESPONSES).mean_ND,
        trained.features(PROMPTS, RESPONSES).mean_ND,
        atol=1e-4,
    )
    plain = TransformersEngine.load(base)
    assert plain.reader.cnf is None
    assert sum(f.stat().st_size for f in adapter.glob("*.safetensors")) < 20_000


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("spare", [0, 7])
@pytest.mark.parametrize("family", ["phi", "phimoe"])
@quiet_peft
def test_a_head_with_a_bias_reads_the_c_that_was_trained(family, spare, dtype, tmp_path):
    tokenizer = tiny_models.tokenizer()
    sizes = {**tiny_models.SIZES, **tiny_models.GROUPED, "vocab_size": len(tokenizer) + spare}
    options = {"tie_word_embeddings": False, "lm_head_bias": True, "eos_token_id": 3}
    config = transformers.AutoConfig.for_model(family, **sizes, **options)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    torch.nn.init.normal_(model.get_output_embeddings().bias, 3.0)
    base, adapter, trained = write(model, tokenizer, tmp_path, modules=("q_proj",), noise=0.2)
    loaded = TransformersEngine.load(base, adapter=adapter, dtype=dtype)
    with light_rows(trained.model, "predict"):
        wanted = np.log(trained.confidences(PROMPTS, RESPONSES))
    found = np.log(loaded.confidences(PROMPTS, RESPONSES))
    assert found == pytest.approx(wanted, abs=1e-4 if dtype == "float32" else 0.3)


@pytest.mark.parametrize("tiny", ["llama_tied", "llama_untied", "gemma2"], indirect=True)
@quiet_peft
def test_half_precision_keeps_the_adapter_apart_and_the_head_in_float32(tiny, tmp_path):
    base, adapter, trained = write(*tiny, tmp_path)
    exact = trained.confidences(PROMPTS, RESPONSES)
    half = TransformersEngine.load(base, adapter=adapter, dtype="bfloat16")
    rows = [p for n, p in half.model.named_parameters() if "trainable_tokens_delta" in n]
    assert rows and all(p.dtype == torch.float32 for p in rows)
    logits, _ = half.forward(Unread(torch.tensor([PROMPTS[0]]), None, torch.arange(4)[None]))
    assert (logits.bfloat16().float() != logits).any(), "the logits were rounded to bfloat16"
    assert half.confidences(PROMPTS, RESPONSES) == pytest.approx(exact, abs=0.08)
    [(_, [got]), *_] = half.generate(PROMPTS, Sampling(max_new_tokens=4))
    assert len(got.trace) >= 1
    assert half.features(PROMPTS, RESPONSES).mean_ND.dtype == np.float32


@every_architecture
def test_the_float32_head_equals_the_head_of_the_float32_model(tiny):
    model, tokenizer = tiny
    token = add_cnf(model, tokenizer)
    ids = torch.tensor([PROMPTS[0]])
    with torch.inference_mode():
        before = model(ids).logits
        head_in_float32(model)
        torch.testing.assert_close(model(ids).logits, before)
    embedding = model.get_input_embeddings().weight
    assert model.get_output_embeddings().weight.data_ptr() != embedding.data_ptr()
    assert embedding.shape[0] > token.id


@quiet_peft
def test_a_merged_directory_brings_its_token_and_reading_along(tiny, tmp_path):
    _, adapter, trained = write(*tiny, tmp_path, read_at="feed")
    expected = trained.confidences(PROMPTS, RESPONSES)
    merged = tmp_path / "merged"
    trained.model.merge_and_unload().save_pretrained(merged)
    trained.tokenizer.save_pretrained(merged)
    shutil.copy(adapter / "grace.json", merged)
    loaded = TransformersEngine.load(str(merged))
    assert (loaded.reader.cnf, loaded.read_at) == (trained.reader.cnf, "feed")
    assert loaded.confidences(PROMPTS, RESPONSES) == pytest.approx(expected, abs=1e-5)


def test_a_model_directory_loads_in_float32_on_the_cpu(tiny, tiny_dir, capfd):
    capfd.readouterr()
    engine = TransformersEngine.load(tiny_dir, device="cpu", batch_size=3)
    assert capfd.readouterr() == ("", "")
    assert engine.batch_size == 3 and engine.device == torch.device("cpu")
    assert next(engine.model.parameters()).dtype == torch.float32
    assert not engine.model.training
    tiny[0].to(torch.bfloat16).save_pretrained(tiny_dir)
    again = TransformersEngine.load(tiny_dir)
    assert next(again.model.parameters()).dtype == torch.float32


def refused(match, path, **options):
    with pytest.raises(ModelError, match=match) as caught:
        TransformersEngine.load(path, **options)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500
    return str(caught.value)


def test_a_directory_without_a_tokenizer_is_refused(tiny_dir):
    for file in tiny_dir.glob("*token*"):
        file.unlink()
    message = refused("no tokenizer in", tiny_dir)
    assert str(tiny_dir) in message and "tokenizer.json" in message


def test_weights_with_missing_tensors_are_refused_and_not_made_up(tiny_dir):
    weights = load_file(tiny_dir / "model.safetensors")
    weights.pop("model.layers.1.mlp.up_proj.weight")
    save_file(weights, tiny_dir / "model.safetensors", metadata={"format": "pt"})
    refused("lack 1 tensors .model.layers.1.mlp.up_proj.weight", tiny_dir)


def test_what_was_fitted_thinks_as_it_was_fitted(tiny_dir, tmp_path):
    file = tiny_dir / "chat_template.jinja"
    file.write_text("{% if enable_thinking is not defined or enable_thinking %}<think>{% endif %}")

    def asked(path, **options):
        tokenizer = TransformersEngine.load(path, **options).tokenizer
        return tokenizer.apply_chat_template([{"role": "user", "content": "?"}], tokenize=False)

    assert asked(tiny_dir) == "" and asked(tiny_dir, thinking=True) == "<think>"
    loaded = TransformersEngine.load(tiny_dir, thinking=True)
    loaded.model.save_pretrained(tmp_path)
    loaded.tokenizer.save_pretrained(tmp_path)
    (tmp_path / "grace.json").write_text("{}")
    assert asked(tmp_path) == "<think>"
    (tmp_path / "chat_template.jinja").write_text(file.read_text())  # fitted before this setting
    (tmp_path / "grace.json").write_text('{"read_at": "predict"}')
    assert asked(tmp_path) == "<think>"


def test_a_model_that_takes_no_cache_is_refused(tokenizer, tmp_path):
    config = transformers.RwkvConfig(vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=2)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    refused(r"is a RwkvForCausalLM, which takes no KV cache and attention mask; use a t", tmp_path)


def test_damaged_weights_are_refused(tiny_dir):
    (tiny_dir / "model.safetensors").write_bytes(b"x" * 100)
    refused("no causal language model in .*; its weights are damaged: download them", tiny_dir)


def test_what_config_json_says_wrongly_is_not_taken_for_another_fault(tiny_dir):
    config = json.loads((tiny_dir / "config.json").read_text())
    (tiny_dir / "config.json").write_text(json.dumps(config | {"vocab_size": 7}))
    refused("its weights have other sizes than config.json says", tiny_dir)
    (tiny_dir / "config.json").write_text("{")
    refused("config.json is not valid JSON", tiny_dir)
    (tiny_dir / "config.json").unlink()
    refused("has no config.json; give a Hugging Face model", tiny_dir)
    (tiny_dir / "adapter_config.json").write_text("{}")
    refused("is an adapter, no model; give the model that it belongs to", tiny_dir)


@pytest.mark.parametrize("tiny", ["llama_untied"], indirect=True)
def test_a_number_format_that_the_model_exceeds_is_named(tiny):
    model, tokenizer = tiny
    add_cnf(model, tokenizer)
    with torch.no_grad():
        model.get_input_embeddings().weight *= 1e6
    engine = TransformersEngine(model, tokenizer)
    assert 0 < engine.confidences(PROMPTS, RESPONSES)[0] < 1
    half = TransformersEngine(model.half(), tokenizer)
    for call in (
        lambda: half.confidences(PROMPTS, RESPONSES),
        lambda: half.logprobs(PROMPTS, RESPONSES),
        lambda: half.features(PROMPTS, RESPONSES),
        lambda: list(half.generate(PROMPTS, Sampling(max_new_tokens=2))),
        lambda: list(half.stream(PROMPTS[0], Sampling(1, 1.0)).start(range(2))),
    ):
        with pytest.raises(ModelError, match=r"NaN.*use the dtype float32 or bfloat16"):
            call()


def test_a_model_without_an_end_token_is_refused(tiny, tmp_path):
    model, tokenizer = tiny
    tokenizer.eos_token = None
    model.config.eos_token_id = model.generation_config.eos_token_id = None
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    refused("neither tokenizer nor model names an end token", tmp_path)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"dtype": "int4"}, "dtype 'int4' is unknown; use auto, float32"),
        ({"device": "gpu0"}, "device 'gpu0' is unknown; use auto"),
        ({"device": "cuda:99"}, "device 'cuda:99' does not exist"),
        ({"device": "meta"}, "device 'meta' is unknown; use auto"),
    ],
)
def test_a_bad_dtype_or_device_is_refused(tiny_dir, options, match):
    refused(match, tiny_dir, **options)


@quiet_peft
def test_adapters_that_do_not_fit_are_refused(tiny, tmp_path):
    base, adapter, _ = write(*tiny, tmp_path)
    refused("does not exist", base, adapter=tmp_path / "nowhere")
    refused("has no adapter_config.json", base, adapter=base)
    manifest = json.loads((adapter / "grace.json").read_text())
    (adapter / "grace.json").write_text(json.dumps(manifest | {"rows": 300}))
    refused("the base model has 320 rows, but adapter .* was trained on 300", base, adapter=adapter)
    (adapter / "grace.json").write_text("{}")
    refused("has no 'rows' in grace.json", base, adapter=adapter)
    (adapter / "grace.json").write_text("{")
    refused("is not valid JSON", base, adapter=adapter)
    (adapter / "grace.json").write_text(json.dumps(manifest | {"read_at": "maybe"}))
    refused("read_at is 'maybe'", base, adapter=adapter)
    (adapter / "grace.json").write_text(json.dumps(manifest))
    weights = load_file(adapter / "adapter_model.safetensors")
    weights.pop(next(name for name in weights if "trainable_tokens" in name))
    save_file(weights, adapter / "adapter_model.safetensors", metadata={"format": "pt"})
    refused("does not fit the base model", base, adapter=adapter)
    (adapter / "adapter_model.safetensors").unlink()
    refused("does not fit the base model", base, adapter=adapter)


@quiet_peft
def test_an_adapter_for_other_layers_is_refused(tiny, tmp_path):
    _, adapter, _ = write(*tiny, tmp_path)
    other = tiny_models.model("gpt_neox")
    other.save_pretrained(tmp_path / "other")
    refused("does not fit the base model", tmp_path / "other", adapter=adapter)


def test_a_tokenizer_ahead_of_its_model_is_refused(tiny, tiny_dir):
    _, tokenizer = tiny
    tokenizer.add_tokens(["<CNF>"], special_tokens=True)
    assert find_readout(tokenizer) == Readout((320,))
    tokenizer.save_pretrained(tiny_dir)
    refused("knows <CNF> as id 320, but the model in .* has 320 rows", tiny_dir)


@pytest.mark.shared
def test_a_real_backbone_keeps_its_logits_and_loses_no_answer(shared: Path):
    folder = shared / "backbones" / "closedbook-llama"
    base, grown = TransformersEngine.load(folder), TransformersEngine.load(folder)
    ids = torch.arange(10, 410).reshape(8, 50)
    with torch.inference_mode():
        before = base.model(ids).logits
        token = add_cnf(grown.model, grown.tokenizer)
        assert torch.equal(grown.model(ids).logits[..., : token.id], before)
    grown = TransformersEngine(grown.model, grown.tokenizer)
    prompts = [ids[i, : 10 + i].tolist() for i in range(8)]
    greedy = Sampling(max_new_tokens=8)
    left, right = dict(base.generate(prompts, greedy)), dict(grown.generate(prompts, greedy))
    assert all(left[i][0].token_ids == right[i][0].token_ids for i in range(8))
