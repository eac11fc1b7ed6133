"""How far a prompt is from those of training, as the engine in this process reads it."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import tiny_models
from grace.engines import Sampling
from grace.engines.transformers import TransformersEngine
from grace.errors import ModelError
from grace.evidence import FEATURES, Evidence, features
from grace.evidence.familiar import Familiar
from grace.methods.grace.prompts import Prompts, distances
from grace.pipeline.stages.fit import write_rows_adapter

RNG = np.random.default_rng(0)
COUNT = len(FEATURES)
KNOWN = Familiar(1.1, tuple(RNG.normal(size=COUNT)), 0.4)
EVIDENCE = Evidence(
    tuple(RNG.normal(size=COUNT)), tuple(RNG.normal(size=COUNT)), 0.2, familiar=KNOWN
)


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    """An adapter whose two sources are 8 prompts each; it reads block 1, and prompts in block 2."""
    folder = tmp_path_factory.mktemp("familiar")
    tiny_models.model("llama_tied").save_pretrained(folder / "base")
    tiny_models.tokenizer().save_pretrained(folder / "base")
    engine = TransformersEngine.load(folder / "base")
    rows, middle = (RNG.normal(size=(4, width)).astype(np.float32) for width in (32, 48))
    asked = tiny_models.prompts(engine.tokenizer, 16)
    seen = engine.states(asked, [[]] * 16, layers=[2])[2].features.first_ND.reshape(2, 8, -1)
    prompts = Prompts(seen.mean(1), seen.std(1), KNOWN.near)
    metadata = {"base_model": str(folder / "base"), "data": {"task": "jsonl", "prompt": "short"}}
    out = folder / "adapter"
    write_rows_adapter(engine, rows, EVIDENCE, out, metadata, (1, middle), (2, prompts))
    return folder / "base", out, prompts


def test_every_way_to_read_a_prompt_finds_the_same_distance_and_the_same_confidence(adapter):
    base, out, known = adapter
    engine, plain = TransformersEngine.load(base, adapter=out), TransformersEngine.load(base)
    prompts = [[*p, *p[:n]] for n, p in enumerate(tiny_models.prompts(engine.tokenizer, 12))]
    sampling = Sampling(num_samples=3, temperature=1.0, max_new_tokens=12)
    drawn = dict(engine.generate(prompts, sampling))
    states = plain.states(prompts, [[]] * len(prompts), layers=[2])[2].features.first_ND
    away = distances(states, known.mean_SH, known.spread_SH)
    found = [[one.familiar for one in drawn[row]] for row in range(len(prompts))]
    expected = [[KNOWN.of(value)] * 3 for value in away]
    assert np.array(found) == pytest.approx(np.array(expected), abs=1e-4)
    assert {True, False} == {0.2 < one[0] < 0.8 for one in expected}  # the test can fail
    ended = [
        (prompts[row], one)
        for row in range(len(prompts))
        for one in drawn[row]
        if one.finish_reason == "stop" and one.text.strip()
    ]
    rated = engine.rated([p for p, _ in ended], [one.token_ids for _, one in ended])
    streamed = [next(iter(engine.stream(p, sampling).start(range(1))))[1] for p in prompts[:3]]
    assert [one.familiar for one in streamed] == pytest.approx([one[0] for one in found[:3]])
    for (_, one), (c, familiar, *_) in zip(ended, rated, strict=True):
        assert (c, familiar) == pytest.approx((one.confidence, one.familiar), abs=1e-4)


def test_where_a_prompt_is_strange_the_log_probabilities_alone_count(adapter, tmp_path: Path):
    base, out, _ = adapter
    shutil.copytree(out, tmp_path, dirs_exist_ok=True)
    card = json.loads((tmp_path / "grace.json").read_text())
    card["evidence"]["familiar"]["near"] = 1e-9
    (tmp_path / "grace.json").write_text(json.dumps(card))
    engine = TransformersEngine.load(base, adapter=tmp_path)
    strange = [[7] * 40, [9, 8] * 25]
    for prompt in strange:
        (((_, (one,)),)) = engine.generate([prompt], Sampling(max_new_tokens=12))
        assert one.familiar < 1e-6
        if one.finish_reason != "stop":
            continue
        weights = np.array(EVIDENCE.weights) + KNOWN.weights
        phi = np.array(features(one.logprobs, one.end_logprob)) - EVIDENCE.center
        alone = EVIDENCE.bias + KNOWN.bias + weights @ phi
        assert one.confidence == pytest.approx(1 / (1 + np.exp(-alone)), abs=1e-4)
        return
    pytest.fail("no strange prompt got an answer")


def test_a_description_of_another_model_is_refused(adapter, tmp_path: Path):
    base, _, known = adapter
    engine = TransformersEngine.load(base)
    rows, middle = (RNG.normal(size=(4, width)).astype(np.float32) for width in (32, 48))
    short = Prompts(known.mean_SH[:, :40], known.spread_SH[:, :40], 1.0)
    metadata = {"base_model": str(base), "data": {"task": "jsonl", "prompt": "short"}}
    write_rows_adapter(engine, rows, EVIDENCE, tmp_path / "a", metadata, (1, middle), (2, short))
    with pytest.raises(
        ModelError, match="does not say what the prompts of training were like in block 2"
    ):
        TransformersEngine.load(base, adapter=tmp_path / "a")
