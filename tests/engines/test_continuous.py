"""Rows that have ended make place for others, and no row notices."""

from __future__ import annotations

import contextlib
import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import tiny_models
from alike import assert_alike
from grace.cnf import add_cnf
from grace.engines import Sampling, transformers
from grace.engines.local import graphs
from grace.engines.local.forward import Forward, Unread
from grace.engines.local.layers import PromptEnds, mlp_output
from grace.engines.local.sampling import SampleRequest
from grace.engines.transformers import TransformersEngine

CLOSE = 1e-5
SAMPLING = Sampling(3, 1.0, 0.95, 40, seed=3)  # no draw on the edge of two tokens
# Those that differ in what is kept of the tokens before, or in how it is read.
KINDS = ("llama_untied", "gpt_neox", "gemma2", "gemma3", "mistral", "smollm3", *tiny_models.HYBRIDS)


def engine_of(name: str, **options: Any) -> TransformersEngine:
    model, tokenizer = tiny_models.model(name), tiny_models.tokenizer()
    add_cnf(model, tokenizer)
    return TransformersEngine(model, tokenizer, **options)


def passes(engine: TransformersEngine) -> list[tuple[int, int]]:
    """Return a list that grows by the rows and columns of every pass of the whole model."""
    shapes: list[tuple[int, int]] = []
    engine.model.register_forward_pre_hook(
        lambda _, args, options: shapes.append(tuple(options["input_ids"].shape)), with_kwargs=True
    )
    return shapes


@pytest.mark.parametrize(
    ("name", "lead"), [*((name, 24 * (place % 2)) for place, name in enumerate(KINDS))]
)
def test_every_row_is_what_it_is_alone_whatever_rows_come_and_go(name: str, lead: int) -> None:
    engine = engine_of(name, batch_size=3)
    tolerance = 1e-4 if name in tiny_models.HYBRIDS else CLOSE
    start = tiny_models.prompts(engine.tokenizer, 4)[3][:lead]
    prompts = [[*start, *own] for own in tiny_models.prompts(engine.tokenizer, 5)]
    keys = [f"q{n}" for n in range(len(prompts))]
    together = dict(engine.generate(prompts, SAMPLING, keys=keys))
    lengths = {len(one.token_ids) for several in together.values() for one in several}
    assert max(lengths) > 6 * (min(lengths) + 1), "answers of very different lengths"
    engine.batch_size = 64
    backwards = dict(engine.generate(prompts[::-1], SAMPLING, keys=keys[::-1]))
    for place, prompt in enumerate(prompts):
        alone = engine.stream(prompt, SAMPLING, keys[place])
        sample = place % SAMPLING.num_samples
        ((_, single),) = alone.start(range(sample, sample + 1))
        assert_alike(together[place][sample], single, tolerance, tolerance)
        others = backwards[len(prompts) - 1 - place]
        for one, other in zip(together[place], others, strict=True):
            assert_alike(one, other, tolerance, tolerance)


def test_rows_that_ended_are_replaced_and_no_step_waits_for_the_longest_answer() -> None:
    engine = engine_of("llama_untied", batch_size=4)
    prompts = tiny_models.prompts(engine.tokenizer, 8)
    shapes = passes(engine)
    one = dataclasses.replace(SAMPLING, num_samples=1)
    made = dict(engine.generate(prompts * 3, one))
    steps = [rows for rows, columns in shapes if columns == 1]
    tokens = sum(len(g.token_ids) + 1 for several in made.values() for g in several)
    assert max(steps) == 4
    assert sum(steps) < 1.6 * tokens, "few rows are computed in vain"
    assert len(steps) < tokens / 2


def test_a_hybrid_begins_anew_once_all_rows_have_ended() -> None:
    engine = engine_of("lfm2", batch_size=4)
    shapes = passes(engine)
    one = dataclasses.replace(SAMPLING, num_samples=1)
    list(engine.generate(tiny_models.prompts(engine.tokenizer, 8), one))
    assert [rows for rows, columns in shapes if columns > 1] == [4, 4]


def test_more_samples_than_fit_are_drawn_in_turn_and_are_the_same() -> None:
    engine = engine_of("qwen2", batch_size=64)
    (prompt,) = tiny_models.prompts(engine.tokenizer, 1)
    many = dataclasses.replace(SAMPLING, num_samples=13)
    ((_, whole),) = engine.generate([prompt], many)
    engine.batch_size = 3
    shapes = passes(engine)
    ((_, samples),) = engine.generate([prompt], many)
    assert max(rows for rows, _ in shapes) == 3
    for one, other in zip(samples, whole, strict=True):
        assert_alike(one, other, relative=CLOSE)


@pytest.mark.parametrize("lead", [0, 24])
def test_rows_of_any_settings_join_while_others_are_drawn_and_one_can_be_stopped(lead: int) -> None:
    engine = engine_of("gemma3")
    start = tiny_models.prompts(engine.tokenizer, 4)[3][:lead]
    prompts = [[*start, *own] for own in tiny_models.prompts(engine.tokenizer, 4)]
    keys = [f"q{n}" for n in range(4)]
    settings = [dataclasses.replace(SAMPLING, max_new_tokens=n) for n in (6, 40, 1)]
    settings.append(Sampling(1, 0.0, max_new_tokens=20))
    requests = [SampleRequest(prompts, sampling, keys) for sampling in settings]
    alone = [dict(engine.generate(prompts, sampling, keys=keys)) for sampling in settings]
    wanted = [one for several in alone for place in range(4) for one in several[place]]
    batch = engine.batch(requests[:1])
    batch._room = lambda width: 7  # the rows in flight
    stopped = next(row for row, one in enumerate(wanted) if len(one.token_ids) > 12)
    counts, got = [0] * len(wanted), dict[int, Any]()
    for step, drawn in enumerate(batch):
        assert len(drawn) <= 7
        for one in drawn:
            counts[one.row] += 1
            if one.row == stopped and counts[stopped] == 3:
                (got[stopped],) = batch.responses([stopped])
        if step % 4 == 2 and (place := 1 + step // 4) < len(requests):
            assert batch.add(requests[place]) == sum(request.rows for request in requests[:place])
    cut = got.pop(stopped)
    assert (cut.token_ids, cut.finish_reason) == (wanted[stopped].token_ids[:3], "length")
    others = [row for row in range(len(wanted)) if row != stopped]
    for row, one in zip(others, batch.responses(others), strict=True):
        assert_alike(one, wanted[row], relative=CLOSE)
        assert counts[row] == len(one.token_ids) + (one.finish_reason == "stop")
    assert not (batch._requests or batch._done or batch._allowed), "nothing is kept of a row"


@pytest.mark.parametrize("name", KINDS[:4])
def test_rows_in_places_of_their_own_are_what_they_are_otherwise(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(graphs, "COLUMNS", 16)  # few, so that the steps use several numbers
    monkeypatch.setattr(graphs, "FEWEST", 2)
    prompts = tiny_models.prompts(engine_of(name).tokenizer, 6)
    wanted = dict(engine_of(name, batch_size=5).generate(prompts, SAMPLING))
    monkeypatch.setattr(transformers, "PLACED", ("cpu",))
    engine, used = engine_of(name, batch_size=5), set[tuple[int, int]]()
    run = graphs.Places._run
    monkeypatch.setattr(graphs.Places, "_run", lambda self, *at: [used.add(at), run(self, *at)][1])
    got = dict(engine.generate(prompts, SAMPLING))
    for place in range(len(prompts)):
        for one, other in zip(wanted[place], got[place], strict=True):
            assert_alike(one, other, relative=CLOSE)
    if engine.forward.slides:
        assert not engine._placed, "windows are counted from the last column"
    else:
        assert len({places for places, _ in used}) > 1 < len({columns for _, columns in used})


def test_a_prompt_goes_to_the_places_of_its_samples_without_a_copy_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transformers, "PLACED", ("cpu",))
    engine, held = engine_of("llama_untied", batch_size=30), list[tuple[int, int]]()
    copy = graphs.Places._copy

    def noted(self: Any, cache: Any, new_N: Any, *args: Any) -> None:
        held.append((len(new_N), len(cache.layers[0].keys)))
        copy(self, cache, new_N, *args)

    monkeypatch.setattr(graphs.Places, "_copy", noted)
    dict(engine.generate(tiny_models.prompts(engine.tokenizer, 6), SAMPLING))
    assert held == [(1, 1), (18, 6)], "rows and prompts, after those on trial"


def captured(self: graphs.Places, places: int, columns: int) -> Any:
    """Return what stands for a CUDA graph of a step; a step of many columns takes too much."""
    if columns > 32:
        raise torch.OutOfMemoryError("CUDA out of memory")
    if not len(self._logits_SV):
        self._logits_SV = torch.empty(self.count, self._run(places, columns).shape[1])

    def replay() -> None:
        self._logits_SV[:places] = self._run(places, columns)

    return SimpleNamespace(replay=replay)


def test_a_step_whose_capture_fails_is_computed_without_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(graphs, "COLUMNS", 16)
    prompts = tiny_models.prompts(engine_of("llama_untied").tokenizer, 6)
    wanted = dict(engine_of("llama_untied").generate(prompts, SAMPLING))
    monkeypatch.setattr(transformers, "PLACED", ("cpu",))
    monkeypatch.setattr(graphs, "CAPTURED", "cpu")
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(graphs.Places, "_captured", captured)
    engine = engine_of("llama_untied")
    assert engine._placed
    got = dict(engine.generate(prompts, SAMPLING))
    assert [one.getMessage() for one in caplog.records] == [
        "steps are not captured as CUDA graphs: CUDA out of memory"
    ]
    for place in range(len(prompts)):
        for one, other in zip(wanted[place], got[place], strict=True):
            assert_alike(one, other, relative=CLOSE)
    monkeypatch.setattr(graphs, "COLUMNS", 64)  # then the trial lacks memory, which says nothing
    with pytest.raises(torch.OutOfMemoryError):
        graphs.works(engine.forward, engine.device)


@pytest.mark.parametrize("own", [False, True])
def test_a_step_in_places_stays_on_the_device_of_the_model(own: bool) -> None:
    meta = torch.device("meta")  # as strict as a GPU about tensors of two devices
    model = tiny_models.model("llama_untied").to(meta)
    size = mlp_output(model, 1).in_features
    rows = ((1, torch.zeros(2, 4, size, device=meta)),)
    ends = PromptEnds(1, *torch.zeros(2, 2, size, device=meta), rows) if own else None
    forward = Forward(model, (1, 2, 3, 4), None, ends)
    ids_1L = torch.arange(6, device=meta)[None]
    _, cache = forward(Unread(ids_1L, None, ids_1L, forward.empty_cache()))
    near_1X = forward.near([1])[:, -1]
    places = graphs.Places(forward, 2, 8, meta)
    places._copy(cache, ids_1L[0, :1], ids_1L[0, :1], ids_1L[0, -1:])
    places._place_R = ids_1L[0, :1]
    made = places.step(ids_1L[0, :1], ids_1L[0, -1:], near_1X, 7)
    assert {near_1X.device, *(one.device for one in made)} == {meta}


def test_a_model_that_ignores_the_mask_of_the_places_is_sampled_the_usual_way() -> None:
    engine = engine_of("llama_untied")
    assert graphs.works(engine.forward, engine.device)
    engine.model.model.register_forward_pre_hook(
        lambda _, args, options: (args, {**options, "attention_mask": None}), with_kwargs=True
    )
    assert not graphs.works(engine.forward, engine.device)


def test_places_take_the_memory_that_rows_of_their_width_are_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transformers, "PLACED", ("cpu",))
    engine, asked, made = engine_of("llama_untied"), list[int](), list[tuple[int, int]]()
    places = graphs.Places.__init__

    def room(width: int, most: int, free: int | None) -> int:
        asked.append(width)
        return 9

    def noted(self: Any, forward: Any, count: int, width: int, *args: Any) -> None:
        places(self, forward, count, width, *args)
        made.append((self.count, self.width))

    monkeypatch.setattr(engine, "room", room)
    monkeypatch.setattr(graphs.Places, "__init__", noted)
    dict(engine.generate(tiny_models.prompts(engine.tokenizer, 8), SAMPLING))
    _, (count, width) = made  # after those on trial
    assert (count, width) == (9, asked[0]) and width % graphs.COLUMNS == 0
    placed = engine._batch(4, placed=True)
    placed.add(SampleRequest([[5, 6]] * 4, SAMPLING, list("abcd")))
    running = placed.finished()
    next(running)
    with pytest.raises(ValueError, match="as wide as the prompts"):
        placed.add(SampleRequest([[5] * 300], SAMPLING, ["e"]))


def test_on_a_gpu_the_free_memory_says_how_many_rows_are_in_flight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = engine_of("llama_untied")
    config = engine.model.config
    per_token = 2 * 4 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    assert engine.forward.bytes_per_token == per_token
    prompts, one = [[5, 6, 7, n] for n in range(40)], dataclasses.replace(SAMPLING, num_samples=1)
    width = 4 + SAMPLING.max_new_tokens
    row = width * per_token * transformers.CACHES + transformers.LOGITS_BYTES * config.vocab_size
    before = dict(engine.generate(prompts, one))
    for rows in (6, 25):
        free = int(row * (rows + 0.5) / transformers.SAFE)
        monkeypatch.setattr(transformers, "free_memory", lambda device, free=free: free)
        shapes = passes(engine)
        for index, (got,) in engine.generate(prompts, one):
            assert_alike(got, before[index][0], relative=CLOSE)
        assert max(rows for rows, _ in shapes) == rows
        plan = engine.plan(prompts, 1, SAMPLING.max_new_tokens)
        assert len(plan) == 1, "units do not depend on the free memory"
    read = [rows * columns for rows, columns in shapes if columns > 1]
    assert max(read) <= engine.at_once(free) < 4 * 25, "prompts are read a few at a time"
    sequences = [[5] * 20] * 64
    monkeypatch.setattr(transformers, "free_memory", lambda device: 10**6)
    assert len(engine._group(sequences)) > 2
    engine.features(sequences, [[6]] * 64)


@torch.inference_mode()
def test_the_cache_is_as_wide_as_the_longest_row_that_is_left() -> None:
    engine = engine_of("llama_tied", batch_size=4)
    widths: list[int] = []
    engine.model.register_forward_pre_hook(
        lambda _, args, options: widths.append(options["cache"].get_seq_length()), with_kwargs=True
    )
    one = dataclasses.replace(SAMPLING, num_samples=1, max_new_tokens=30)
    list(engine.generate([[5, 6, 7, 8]] * 60, one, keys=[str(n) for n in range(60)]))
    assert len(widths) > 100 and max(widths) <= 4 + 30 + 30
