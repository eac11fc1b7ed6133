"""The builder: the training forward, an interrupted training, and a build in miniature."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from grace.pocket import MODEL_DIR  # noqa: E402
from tools.pocket import TASKS  # noqa: E402
from tools.pocket import train as training  # noqa: E402
from tools.pocket.build import Recipe, build, load, new_model  # noqa: E402
from tools.pocket.corpus import CorpusSettings  # noqa: E402
from tools.pocket.train import TrainSettings, causal_logits, train, weighted_loss  # noqa: E402
from tools.pocket.widen import widen  # noqa: E402

SIZES = {"width": 32, "num_layers": 1, "num_heads": 2, "mlp_width": 32}


@pytest.fixture(scope="module")
def pocket():
    return load(MODEL_DIR)


def test_the_training_forward_is_the_published_one(pocket) -> None:
    model, tokenizer = pocket
    ids_BT = tokenizer("Question: Where?\nGuess:", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        ours = causal_logits(model, ids_BT, torch.float32)
        theirs = model(ids_BT).logits
    torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=1e-3)


def test_a_rebuild_in_miniature_runs_from_nothing(tmp_path) -> None:
    corpus = CorpusSettings(
        sums=40, weights=40, fact_opinions=40, puzzle_opinions=10, fact_share=0.01
    )
    tiny = Recipe(**SIZES, corpus=corpus, training=TrainSettings(rows_per_step=4, compile=False))
    made = build(tmp_path, recipe=tiny, num_asked=10)
    assert (tmp_path / "recipe.json").exists() and set(made["greedy_test_accuracy"]) == set(TASKS)


def test_an_interrupted_training_goes_on_to_the_same_weights(pocket, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(training, "_SAVED_EVERY", 2)
    ids_RT = np.random.default_rng(0).integers(6, 1000, (10, 16))
    weights_RT = np.ones((10, 16), dtype=np.float32)
    settings = TrainSettings(rows_per_step=2, compile=False)

    def trained(saved: Path):
        model = new_model(pocket[1], Recipe(**SIZES), 0)
        train(model, ids_RT, weights_RT, settings, saved)
        return model.state_dict()

    steps = iter(range(3))

    def stop_after_three(*tensors):
        if next(steps, None) is None:
            raise KeyboardInterrupt
        return weighted_loss(*tensors)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(training, "weighted_loss", stop_after_three)
        trained(tmp_path / "state.pt")
    assert (tmp_path / "state.pt").exists()
    resumed, whole = trained(tmp_path / "state.pt"), trained(tmp_path / "other.pt")
    assert all(torch.equal(resumed[name], whole[name]) for name in whole)
    assert list(tmp_path.iterdir()) == []


def test_a_widened_decoder_says_the_same(pocket) -> None:
    recipe = Recipe(width=44, num_layers=2, num_heads=2, mlp_width=40)
    model = new_model(pocket[1], recipe, 0)
    wide = widen(model)
    sizes = (wide.config.hidden_size, wide.config.head_dim, wide.config.intermediate_size)
    assert sizes == (64, 32, 64)
    ids_BT = torch.arange(6, 300)[None]
    with torch.no_grad():
        torch.testing.assert_close(wide(ids_BT).logits, model(ids_BT).logits, atol=1e-4, rtol=1e-4)
