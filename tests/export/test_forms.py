"""Every exported form gives the logits and the confidence of the model that was trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

import grace
import tiny_models
from grace.engines import Sampling
from grace.engines.reading import named_ends
from grace.engines.transformers import TransformersEngine
from grace.errors import ConfigError, GraceError, ModelError
from grace.evidence import Evidence, confidence, reading
from grace.export import export_model
from made_up_evidence import EVIDENCE
from tiny_lora import Trained, write

pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*tie_word_embeddings.*"),
]
PROMPTS = [[10, 11, 12, 13], [20, 21]]
RESPONSES = [[30, 31, 32], [40]]
CASES = ("llama_tied", "llama_untied", "qwen2", "tied_padded", "gpt_neox")
PADDED = ("qwen2", "tied_padded")


def train(name: str, folder: Path, *, read_at: str = "predict", **changes: Any) -> Trained:
    model = tiny_models.model("llama_tied" if name == "tied_padded" else name)
    tokenizer = tiny_models.tokenizer()
    if name == "tied_padded":
        model.resize_token_embeddings(len(tokenizer) + 7, mean_resizing=False)
    changes = {"evidence": EVIDENCE if read_at != "prompt" else None} | changes
    return write(model, tokenizer, folder, read_at=read_at, **changes)


def export(made: Trained, out: Path, form: str, **options: Any) -> Any:
    return export_model(
        made.adapter, made.adapter, str(made.base), out, form=form, dtype="float32", **options
    )


def logits(model: Any) -> np.ndarray:
    ids = torch.tensor([[5, 9, 14, 33, 60, 7]])
    with torch.inference_mode():
        found: np.ndarray = model(input_ids=ids).logits[0].numpy()
    return found


def same(found: Any, expected: Any, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=tolerance)


@pytest.mark.parametrize(
    ("name", "read_at"),
    [(name, ("predict", "feed")[place % 2]) for place, name in enumerate(CASES)],
)
def test_merged_is_a_plain_checkpoint_with_the_same_numbers(
    name: str, read_at: str, tmp_path: Path
) -> None:
    made = train(name, tmp_path, read_at=read_at)
    out = tmp_path / "out"
    export(made, out, "merged")
    plain = transformers.AutoModelForCausalLM.from_pretrained(out)
    same(logits(plain), logits(made.engine.model), 3e-5)
    tied = plain.get_input_embeddings().weight is plain.get_output_embeddings().weight
    assert tied == name.endswith(("_tied", "tied_padded"))
    assert plain.generation_config.eos_token_id == [3, made.engine.reader.cnf]
    loaded = grace.load(out)
    assert loaded.engine.reader.stops == made.engine.reader.stops  # no end counts twice
    assert (loaded.data.prompt, loaded.engine.read_at) == ("short", read_at)
    expected = made.engine.confidences(PROMPTS, RESPONSES)
    same(loaded.engine.confidences(PROMPTS, RESPONSES), expected)
    sampling = Sampling(2, 0.8, max_new_tokens=20)
    for (_, found), (_, wanted) in zip(
        loaded.engine.generate(PROMPTS, sampling),
        made.engine.generate(PROMPTS, sampling),
        strict=True,
    ):
        assert [g.token_ids for g in found] == [g.token_ids for g in wanted]


@pytest.mark.parametrize(
    "named",
    [
        {"temperature": 0.9, "top_p": 0.6, "do_sample": False},  # as Llama 2 has them
        {"temperature": 0.9, "top_p": 0.6, "do_sample": True},
        {"length_penalty": 0.0, "output_scores": True, "repetition_penalty": 1.2},
    ],
)
def test_merged_keeps_the_generation_settings_of_the_base_without_effect_or_not(
    named: dict[str, Any], tmp_path: Path
) -> None:
    made = train("llama_tied", tmp_path)
    (made.base / "generation_config.json").write_text(json.dumps({"eos_token_id": 3, **named}))
    export(made, tmp_path / "out", "merged")
    kept = transformers.GenerationConfig.from_pretrained(tmp_path / "out")
    assert {name: getattr(kept, name) for name in named} == named
    assert kept.eos_token_id == [3, made.engine.reader.cnf]


def test_any_program_stops_on_cnf_and_can_compute_the_confidence(tmp_path: Path) -> None:
    made = train("qwen2", tmp_path)
    export(made, tmp_path / "out", "merged")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    card = json.loads((tmp_path / "out" / "grace.json").read_text())
    ends = []
    for seed in range(24):
        torch.manual_seed(seed)
        prompt = torch.tensor([PROMPTS[0]])
        told = model.generate(
            prompt, do_sample=True, max_new_tokens=30, output_logits=True,
            return_dict_in_generate=True, top_k=0,
        )  # fmt: skip
        *response, last = told.sequences[0, prompt.shape[1] :].tolist()
        assert made.engine.reader.cnf not in response
        if last not in (3, made.engine.reader.cnf):
            continue
        ends.append(last)
        steps = torch.cat(told.logits).log_softmax(-1)
        chosen = [float(steps[step, token]) for step, token in enumerate(response)]
        odds = reading(float(steps[-1, card["cnf_id"]]))
        end = float(steps[-1, 3] - np.log1p(-np.exp(float(steps[-1, card["cnf_id"]]))))
        c = confidence([(odds,)], chosen, end, Evidence.from_dict(card["evidence"]))
        (expected,) = made.engine.confidences([PROMPTS[0]], [response])
        assert c == pytest.approx(expected, abs=1e-5)
    assert len(ends) > 2 and made.engine.reader.cnf in ends


@pytest.mark.parametrize("read_at", ["predict", "prompt"])
@pytest.mark.parametrize("name", PADDED)
def test_a_lora_alone_on_the_stock_base_has_the_same_numbers(
    name: str, read_at: str, tmp_path: Path
) -> None:
    from peft import PeftModel

    made = train(name, tmp_path, read_at=read_at)
    transformers.GenerationConfig(eos_token_id=[3, 5]).save_pretrained(made.base)
    out = tmp_path / "out"
    export(made, out, "vllm-lora")
    told = (out / "README.md").read_text()
    assert "--enable-lora --max-lora-rank 8" in told
    assert "grace proxy" in told
    # read at the prompt, <CNF> ends nothing
    ends = [3, 5] if read_at == "prompt" else [3, 5, made.engine.reader.cnf]
    assert f'"stop_token_ids": {ends},' in told
    assert named_ends(out) == tuple(ends)  # the base's own, wherever the base is
    weights = load_file(out / "adapter_model.safetensors")
    assert all(".lora_A." in key or ".lora_B." in key for key in weights)
    config = json.loads((out / "adapter_config.json").read_text())
    assert config["trainable_token_indices"] is None
    assert {len(t) for k, t in weights.items() if ".lora_A." in k} == {config["r"]}
    stock = transformers.AutoModelForCausalLM.from_pretrained(made.base)
    before = logits(stock)
    model = PeftModel.from_pretrained(stock, out).eval()
    same(logits(model), logits(made.engine.model), 3e-5)
    with model.disable_adapter():
        same(logits(model), before, 3e-5)
    evidence = EVIDENCE if read_at == "predict" else None
    tokenizer = made.engine.tokenizer
    engine = TransformersEngine(model, tokenizer, read_at, evidence=evidence)
    expected = made.engine.confidences(PROMPTS, RESPONSES)
    same(engine.confidences(PROMPTS, RESPONSES), expected)
    again = tmp_path / "again"  # an export of the export
    export_model(out, out, str(made.base), again)
    same(TransformersEngine.load(again).confidences(PROMPTS, RESPONSES), expected)
    digests = [json.loads((at / "grace.json").read_text())["adapter_digest"] for at in (out, again)]
    assert digests[0] == digests[1]


@pytest.mark.parametrize("name", ["llama_tied", "llama_untied"])
def test_a_lora_alone_needs_a_row_to_spare(name: str, tmp_path: Path) -> None:
    made = train(name, tmp_path)
    with pytest.raises(ModelError, match="none to spare for <CNF>"):
        export(made, tmp_path / "out", "vllm-lora")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("adapter_config.json", b"{", "adapter_config.json is not valid JSON"),
        ("adapter_config.json", b"{}", "is not a trained LoRA"),
        ("adapter_model.safetensors", b"torn", "adapter_model.safetensors cannot be read"),
    ],
)
def test_a_damaged_lora_is_refused_for_vllm(
    file: str, content: bytes, says: str, tmp_path: Path
) -> None:
    made = train("qwen2", tmp_path)
    (made.adapter / file).write_bytes(content)
    with pytest.raises(ModelError, match=f"{says}.*again$"):
        export(made, tmp_path / "out", "vllm-lora")


def test_what_vllm_cannot_read_in_one_request_is_refused(tmp_path: Path) -> None:
    made = train("qwen2", tmp_path, read_at="feed")
    with pytest.raises(ModelError, match="second request"):
        export(made, tmp_path / "out", "vllm-lora")


@pytest.mark.parametrize("name", ["llama_tied", "qwen2"])
def test_the_adapter_is_as_it_was(name: str, tmp_path: Path) -> None:
    made = train(name, tmp_path)
    out = tmp_path / "out"
    export(made, out, "adapter")
    for file in ("adapter_model.safetensors", "adapter_config.json", "tokenizer.json"):
        assert (out / file).read_bytes() == (made.adapter / file).read_bytes()
    expected = made.engine.confidences(PROMPTS, RESPONSES)
    same(grace.load(out).engine.confidences(PROMPTS, RESPONSES), expected)


def test_half_precision_is_rounded_once_after_the_merge(tmp_path: Path) -> None:
    made = train("llama_untied", tmp_path)
    export_model(
        made.adapter, made.adapter, str(made.base), tmp_path / "half", dtype="bfloat16"
    )  # fmt: skip
    export(made, tmp_path / "full", "merged")
    half = load_file(tmp_path / "half" / "model.safetensors")
    for key, tensor in load_file(tmp_path / "full" / "model.safetensors").items():
        assert torch.equal(half[key], tensor.to(torch.bfloat16)), key


@pytest.mark.parametrize(
    "options, error, words",
    [
        ({"form": "onnx"}, ConfigError, "use merged, vllm-lora, gguf, adapter"),
        ({"dtype": "int4"}, ConfigError, "float32"),
        ({"base": "/gone"}, ModelError, "/gone"),
    ],
)
def test_bad_input_is_one_line(
    options: dict[str, Any], error: type[GraceError], words: str, tmp_path: Path
) -> None:
    made = train("llama_tied", tmp_path)
    options = {"base": str(made.base), **options}
    base = options.pop("base")
    with pytest.raises(error) as refused:
        export_model(made.adapter, made.adapter, base, tmp_path / "out", **options)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "base"]


def test_a_directory_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    made = train("llama_tied", tmp_path)
    with pytest.raises(ConfigError, match="not empty"):
        export(made, made.base, "merged")
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    with pytest.raises(ModelError, match="train again"):
        export_model(foreign, foreign, str(made.base), tmp_path / "out")
