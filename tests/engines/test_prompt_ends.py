"""How far a prompt is from those of training, as the engine in this process reads it."""

import json
import shutil
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import tiny_models
import tiny_run
from grace.engines import Sampling, transformers
from grace.engines.local.layers import PromptEnds
from grace.engines.transformers import TransformersEngine
from grace.errors import ModelError
from grace.evidence import FEATURES, OWN, Evidence, confidence, features, pooled
from grace.evidence.familiar import Familiar, Own
from grace.methods.grace.prompts import Prompts, distances
from grace.pipeline.stages.fit import write_rows_adapter

UNLIKE = "does not say what grace.json needs of the prompts of training"
RNG = np.random.default_rng(0)
COUNT = len(FEATURES)
ALONE = tuple(Own(share, tuple(RNG.normal(size=COUNT)), share) for share in (0.6, 0.9))
KNOWN = Familiar(1.1, tuple(RNG.normal(size=COUNT)), 0.4, ALONE)
EVIDENCE = Evidence(
    tuple(RNG.normal(size=COUNT)), tuple(RNG.normal(size=COUNT)), 0.2, familiar=KNOWN
)


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    """An adapter whose two sources are 8 prompts each; it reads block 1, and prompts in block 2.

    The rows of the sources' own read blocks 2 and 1.
    """
    folder = tmp_path_factory.mktemp("familiar")
    tiny_run.write_model(folder / "base", "llama_tied")
    engine = TransformersEngine.load(folder / "base")
    rows, middle = (RNG.normal(size=(4, width)).astype(np.float32) for width in (32, 48))
    asked = tiny_models.prompts(engine.tokenizer, 16)
    seen = engine.states(asked, [[]] * 16, layers=[2])[2].features.first_ND.reshape(2, 8, -1)
    own = tuple((block, RNG.normal(size=(3, 48)).astype(np.float32)) for block in (2, 1))
    prompts = Prompts(seen.mean(1), seen.std(1), KNOWN.near, own)
    metadata = {"base_model": str(folder / "base"), "data": {"task": "jsonl", "prompt": "short"}}
    out = folder / "adapter"
    write_rows_adapter(engine, rows, EVIDENCE, out, metadata, (1, middle), (2, prompts))
    return folder / "base", out, prompts


@pytest.mark.parametrize("placed", [False, True])
def test_every_way_to_read_a_prompt_finds_the_same_distance_and_the_same_confidence(
    adapter, monkeypatch: pytest.MonkeyPatch, placed: bool
):
    """`placed`: with the steps of a GPU, which cannot look at what a step has left behind."""
    monkeypatch.setattr(transformers, "PLACED", ("cpu",) if placed else ())
    base, out, known = adapter
    engine, plain = TransformersEngine.load(base, adapter=out), TransformersEngine.load(base)
    assert engine._placed == placed
    prompts = [[*p, *p[:n]] for n, p in enumerate(tiny_models.prompts(engine.tokenizer, 12))]
    sampling = Sampling(num_samples=3, temperature=1.0, max_new_tokens=12)
    drawn = dict(engine.generate(prompts, sampling))
    states = plain.states(prompts, [[]] * len(prompts), layers=[2])[2].features.first_ND
    away = distances(states, known.mean_SH, known.spread_SH).min(0)
    found = [[one.familiar for one in drawn[row]] for row in range(len(prompts))]
    expected = [[KNOWN.of(value)] * 3 for value in away]
    assert np.array(found) == pytest.approx(np.array(expected), abs=1e-4)
    assert {True, False} == {0.2 < one[0] < 0.8 for one in expected}  # the test can fail
    assert max(one[0] for one in expected) > 0.9
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


def test_the_rows_of_the_nearest_source_read_an_answer(adapter, tmp_path: Path):
    """As reckoned from its states; an adapter as of earlier versions has no such rows."""
    base, out, known = adapter
    engine, plain = TransformersEngine.load(base, adapter=out), TransformersEngine.load(base)
    prompts = [[*p, *p[:n]] for n, p in enumerate(tiny_models.prompts(engine.tokenizer, 12))]
    written = [[5 + n, 6, 7][: n % 4] for n in range(12)]
    states = plain.states(prompts, written, layers=[1, 2])
    away_SN = distances(states[2].features.first_ND, known.mean_SH, known.spread_SH)
    scored = [*engine._scored(prompts, written)]
    for row, (one, source) in enumerate(zip(scored, away_SN.argmin(0), strict=True)):
        layer, rows_QD = known.own[source]
        mean, last, first = (state_ND[row] for state_ND in states[layer].features)
        read = [last @ rows_QD[0], first @ rows_QD[1], mean @ rows_QD[2]]
        assert {int(step[OWN - 1]) for step in one.readings} == {source}
        assert pooled(one.readings, OWN) == pytest.approx(read, abs=1e-3)
    assert {0, 1} == {*away_SN.argmin(0).tolist()}  # the test can fail
    shutil.copytree(out, tmp_path, dirs_exist_ok=True)
    card = json.loads((tmp_path / "grace.json").read_text())
    assert card.pop("own_layers") == [2, 1] and card["evidence"]["familiar"].pop("own")
    (tmp_path / "grace.json").write_text(json.dumps(card))
    earlier = TransformersEngine.load(base, adapter=tmp_path)
    shared = replace(EVIDENCE, familiar=replace(KNOWN, own=()))
    found = [one.confidence for one in earlier.rated(prompts, written)]
    short = [[step[: OWN - 1] for step in one.readings] for one in scored]
    expected = [
        confidence(steps, one.logprobs, one.end, shared)
        for steps, one in zip(short, scored, strict=True)
    ]
    assert found == pytest.approx(expected, abs=1e-4)
    changed = [
        abs(a - one.confidence)
        for a, one in zip(found, engine.rated(prompts, written), strict=True)
    ]
    assert max(changed) > 0.1  # the test can fail


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
    short = known._replace(mean_SH=known.mean_SH[:, :40], spread_SH=known.spread_SH[:, :40])
    few = known._replace(own=known.own[:1])
    narrow = known._replace(own=[(layer, rows_QH[:, :40]) for layer, rows_QH in known.own])
    metadata = {"base_model": str(base), "data": {"task": "jsonl", "prompt": "short"}}
    for n, one in enumerate((short, few, narrow)):
        out = tmp_path / str(n)
        write_rows_adapter(engine, rows, EVIDENCE, out, metadata, (1, middle), (2, one))
        with pytest.raises(ModelError, match=UNLIKE):
            TransformersEngine.load(base, adapter=out)


@pytest.mark.parametrize("field", [False, True])
@pytest.mark.parametrize(
    "own, blocks",
    [
        (1, {}),
        (3, {}),
        (0, {}),
        (2, {"own_layers": []}),
        (2, {"own_layers": [2]}),
        (2, {"own_layers": [], "prompt_layer": 0}),
    ],
)
def test_a_card_with_fits_to_other_sources_than_its_rows_is_refused(
    adapter, tmp_path: Path, own: int, blocks: dict, field: bool
):
    """Else an answer would fail, or have another confidence."""
    base, out, _ = adapter
    shutil.copytree(out, tmp_path, dirs_exist_ok=True)
    card = json.loads((tmp_path / "grace.json").read_text()) | blocks
    whole = replace(EVIDENCE, familiar=replace(KNOWN, own=(ALONE * 2)[:own]))
    evidence = replace(EVIDENCE, fields={"": whole}) if field else whole
    card["evidence"] = evidence.to_dict()
    (tmp_path / "grace.json").write_text(json.dumps(card))
    with pytest.raises(ModelError, match=UNLIKE):
        TransformersEngine.load(base, adapter=tmp_path)


def test_the_rows_of_sources_hold_what_one_block_has_seen_at_a_time():
    """Of 131,072 tokens in flight that takes gigabytes."""
    seen, places = torch.randn(3, 5, 4, 8), torch.tensor([1, 0, 1, 1, 0])
    rows, held = torch.randn(3, 2, 3, 8), []

    def taps(layer: int, keep: int) -> torch.Tensor:
        assert not [one for one in held if one() is not None]
        found = seen[layer, :, -keep:].clone()
        held.append(weakref.ref(found))
        return found

    ends = PromptEnds(1, *torch.ones(2, 2, 8), tuple(enumerate(rows)))
    found = ends.read(taps, places, 2)
    expected = [
        sum(rows[n, p] @ seen[n, b, -2:].mT for n in range(3)).T for b, p in enumerate(places)
    ]
    assert len(held) == 3
    torch.testing.assert_close(found, torch.stack(expected))
