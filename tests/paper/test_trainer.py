from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import tiny_models
import tiny_run
from grace.cnf import add_cnf
from grace.engines.transformers import TransformersEngine
from grace.errors import ConfigError, RunError, TrainingError
from grace.methods.paper import loop
from grace.methods.paper.examples import Example


def weights(folder: Path) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = load_file(folder / "adapter_model.safetensors")
    return tensors


def merged(name: str, adapter: Path) -> Any:
    from peft import PeftModel

    model, tokenizer = tiny_models.model(name), tiny_models.tokenizer()
    add_cnf(model, tokenizer)
    with pytest.warns(FutureWarning, match="is_gradient_checkpointing"):
        return PeftModel.from_pretrained(model, adapter).merge_and_unload()


@pytest.mark.parametrize("name", ["llama_tied", "qwen2", "gpt_neox"])
def test_exactly_lora_and_one_row_change(name: str, train: Any) -> None:
    before = tiny_models.model(name)
    tokenizer = tiny_models.tokenizer()
    add_cnf(before, tokenizer)
    done = train(name, variant="feed")
    after = dict(merged(name, done.adapter).named_parameters())
    embeddings = {before.get_input_embeddings().weight, before.get_output_embeddings().weight}
    changed_rows = 0
    for key, old in before.named_parameters():
        if any(old is matrix for matrix in embeddings):
            rows = (old != after[key]).any(dim=1).nonzero().flatten().tolist()
            assert rows == [done.cnf.id], key
            changed_rows += 1
        elif "mlp" in key and key.endswith("weight"):
            assert not torch.equal(old, after[key]), key
        else:
            assert torch.equal(old, after[key]), key
    assert changed_rows == len(embeddings)


def test_the_model_is_left_as_it_came(train: Any) -> None:
    done = train("llama_untied", epochs=1, gradient_checkpointing=True)
    fresh = tiny_models.model("llama_untied")
    add_cnf(fresh, tiny_models.tokenizer())
    state = done.model.state_dict()
    assert state.keys() == fresh.state_dict().keys()
    assert all(torch.equal(state[key], value) for key, value in fresh.state_dict().items())
    assert done.model.config.use_cache == fresh.config.use_cache
    assert all(parameter.requires_grad for parameter in done.model.parameters())
    assert not done.model.is_activation_checkpointing
    assert not done.model.training


def test_the_output_row_of_an_untied_head_is_trained_and_at_predict_it_alone(train: Any) -> None:
    done = train("llama_untied", variant="grace")
    tensors = weights(done.adapter)
    start = done.model.get_output_embeddings().weight[done.cnf.id]
    moved = {key: t for key, t in tensors.items() if "trainable_tokens_delta" in key}
    (head,) = [t for key, t in moved.items() if "lm_head" in key]
    (embedding,) = [t for key, t in moved.items() if "embed_tokens" in key]
    assert (head[0] - start).abs().max() > 1e-3
    assert torch.equal(embedding[0], done.model.get_input_embeddings().weight[done.cnf.id])


def test_the_calibration_loss_falls(train: Any, examples: list[Example]) -> None:
    losses: list[float] = []
    train(
        "gemma2",
        epochs=8,
        learning_rate=2e-2,
        dropout=0.0,
        gamma=0.0,
        data=examples[:8],
        on_step=lambda step, total, logs: losses.append(logs["calibration"]),
    )
    assert losses[-1] < 0.75 * losses[0]


def test_gamma_keeps_what_the_model_says(train: Any) -> None:
    def sft_of(gamma: float) -> float:
        logs: list[dict[str, float]] = []
        options = {"epochs": 6, "learning_rate": 2e-2, "dropout": 0.0}
        train(folder=f"gamma{gamma}", gamma=gamma, on_step=lambda *a: logs.append(a[2]), **options)
        assert (logs[0]["sft"] == 0) == (gamma == 0)
        assert logs[0]["loss"] == pytest.approx(
            logs[0]["calibration"] + gamma * logs[0]["sft"], rel=1e-5
        )
        return logs[-1]["sft"]

    assert sft_of(1.0) < sft_of(0.01)


def test_micro_batches_take_the_same_steps_as_whole_batches(train: Any) -> None:
    norms: list[list[float]] = []
    for size in (0, 3):
        seen: list[float] = []
        train(
            folder=f"micro{size}",
            micro_batch_size=size,
            dropout=0.0,
            epochs=1,
            on_step=lambda step, total, logs, seen=seen: seen.append(logs["grad_norm"]),
        )
        norms.append(seen)
    np.testing.assert_allclose(norms[0], norms[1], rtol=1e-3)


def test_bfloat16_training_reads_the_c_of_the_bfloat16_engine(
    train: Any, validation: list[Example], tmp_path: Path
) -> None:
    logs: list[dict[str, float]] = []
    done = train(dtype=torch.bfloat16, epochs=1, on_step=lambda *a: logs.append(a[2]))
    base = tiny_run.write_model(tmp_path / "base")
    engine = TransformersEngine.load(base, adapter=done.adapter, dtype="bfloat16")
    c = engine.confidences(
        [row.prompt_ids for row in validation], [row.response_ids for row in validation]
    )
    assert np.mean(c) == pytest.approx(logs[-1]["eval_mean_c"], abs=2e-3)


def test_the_row_has_a_learning_rate_of_its_own_and_no_decay(train: Any) -> None:
    slow = weights(train(folder="slow", row_learning_rate=1e-9, weight_decay=0.5).adapter)
    fast = train(folder="fast", row_learning_rate=1e-1)
    start = fast.model.get_output_embeddings().weight[fast.cnf.id]
    key = next(key for key in slow if "lm_head" in key)
    assert (slow[key][0] - start).abs().max() < 1e-6
    assert (weights(fast.adapter)[key][0] - start).abs().max() > 1e-2


def test_weight_decay_is_for_lora_alone(train: Any) -> None:
    options = {"learning_rate": 1e-12, "row_learning_rate": 1e-2, "dropout": 0.0, "epochs": 1}
    plain = weights(train(folder="plain", weight_decay=0.0, **options).adapter)
    decayed = weights(train(folder="decayed", weight_decay=0.9, **options).adapter)
    key = next(key for key in plain if "lm_head" in key)
    torch.testing.assert_close(decayed[key], plain[key], atol=1e-5, rtol=1e-4)


def test_checkpoints_and_adapter_hold_no_full_matrix_and_two_checkpoints_are_kept(
    train: Any,
) -> None:
    done = train("llama_untied", epochs=4, save_every=2)
    assert done.log[-1]["step"] == 12
    kept = sorted(path.name for path in done.checkpoints.glob("checkpoint-*"))
    assert kept == ["checkpoint-10", "checkpoint-12"]
    for folder in (done.adapter, *done.checkpoints.glob("checkpoint-*")):
        shapes = [tuple(tensor.shape) for tensor in weights(folder).values()]
        assert all(min(shape) <= 4 for shape in shapes)
        trained = sum(math.prod(shape) for shape in shapes)
        size = sum(path.stat().st_size for path in folder.glob("*.pt")) + sum(
            path.stat().st_size for path in folder.glob("*.safetensors")
        )
        assert size < 4 * trained * 4 + 40_000


def test_the_adapter_directory_is_complete_and_names_what_it_needs(train: Any) -> None:
    done = train(epochs=1)
    record = json.loads((done.adapter / "grace.json").read_text())
    assert record["cnf_token"] == "<CNF>"
    assert record["cnf_id"] == done.cnf.id
    assert record["rows"] == done.model.get_input_embeddings().weight.shape[0]
    assert record["base_model"] == "llama_untied"
    assert record["read_at"] == "predict"
    assert {"README.md", "tokenizer.json", "adapter_config.json", "training_log.jsonl"} <= {
        path.name for path in done.adapter.iterdir()
    }
    lines = (done.adapter / "training_log.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert rows == done.log
    assert {"eval_mean_log_c", "eval_brier", "eval_ece"} <= rows[0].keys()
    assert {"loss", "calibration", "sft", "mean_c", "grad_norm"} <= rows[1].keys()
    assert rows[-1]["epoch"] == 1


def test_a_loss_that_is_not_finite_stops_with_its_step_and_keeps_the_checkpoint(
    train: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = loop.losses, [0]

    def broken(*args: Any, **options: Any) -> Any:
        terms = real(*args, **options)
        calls[0] += 1
        return terms if calls[0] != 5 else terms._replace(calibration=terms.calibration * math.nan)

    monkeypatch.setattr(loop, "losses", broken)
    with pytest.raises(TrainingError, match="loss is nan at step 5 of 6"):
        train(save_every=2)
    monkeypatch.undo()
    assert train(save_every=2).log[-1]["step"] == 6


def test_running_out_of_memory_names_the_way_out(
    train: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any, **options: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(loop, "losses", full)
    with pytest.raises(TrainingError, match=r"at step 1; set paper\.micro_batch_size"):
        train()


def test_what_cannot_be_trained_on_is_refused(train: Any, examples: list[Example]) -> None:
    with pytest.raises(TrainingError, match="no response ended with an end-of-sequence token"):
        train(data=[])
    long = dataclasses.replace(examples[0], prompt_ids=(5,) * 300)
    with pytest.raises(TrainingError, match=r"has 30\d tokens .* more than the model's 256"):
        train(data=[*examples, long])
    with pytest.raises(ConfigError, match="report_to"):
        train(report_to="wandb")


def test_checkpoints_of_other_settings_are_refused(train: Any, examples: list[Example]) -> None:
    train(epochs=1)
    with pytest.raises(RunError, match=r"other values of paper\.gamma; delete"):
        train(epochs=1, gamma=0.2)
    with pytest.raises(RunError, match="the examples or the seed"):
        train(epochs=1, data=examples[1:])
