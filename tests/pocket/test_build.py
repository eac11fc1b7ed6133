"""The builder: the training forward, an interrupted training, and a build in miniature."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from grace.pocket import MODEL_DIR  # noqa: E402
from tools.pocket import TASKS  # noqa: E402
from tools.pocket.build import Recipe, build, load  # noqa: E402
from tools.pocket.corpus import CorpusSettings  # noqa: E402
from tools.pocket.train import TrainSettings, causal_logits  # noqa: E402

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


def test_a_rebuild_in_miniature_runs_from_nothing(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("tools.pocket.train.fastest_dtype", lambda: torch.float32)
    corpus = CorpusSettings(
        sums=40, weights=40, fact_opinions=40, puzzle_opinions=10, fact_share=0.01
    )
    tiny = Recipe(**SIZES, corpus=corpus, training=TrainSettings(rows_per_step=4, compile=False))
    made = build(tmp_path, recipe=tiny, num_asked=3)
    assert (tmp_path / "recipe.json").exists() and set(made["greedy_test_accuracy"]) == set(TASKS)
