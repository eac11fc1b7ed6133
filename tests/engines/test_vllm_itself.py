"""vLLM itself gives the transformers engine's tokens and its c: `make vllm`."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from alike import assert_alike
from grace.engines import Sampling
from grace.engines.base import load_engine
from grace.errors import ModelError
from grace.records import is_whole

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]
SMALL: dict[str, Any] = {"enforce_eager": True, "max_model_len": 256, "max_num_seqs": 8}
GREEDY = Sampling(max_new_tokens=24)
SAMPLED = Sampling(4, 0.8, max_new_tokens=24, seed=7)
CLOSE = 1e-4
FORMS = [(head, form) for head in ("tied", "untied") for form in ("merged", "vllm-lora")]
FORMS += [("pair", "merged")]
CARRIED = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "phi3",
    "smollm3",
    "gemma3_text",
)  # whose c reads a layer in the middle


@pytest.fixture(scope="module", autouse=True)
def on_a_cpu() -> None:
    os.environ |= {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
    }


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    import vllm_models

    return vllm_models.write_all(tmp_path_factory)


@pytest.fixture(scope="module", params=FORMS, ids=["-".join(case) for case in FORMS])
def both(request: Any, trained: dict[str, Path]) -> Iterator[tuple[Any, Any]]:
    """vLLM with an export, and transformers with the adapter as it was trained."""
    from grace.engines.transformers import TransformersEngine

    head, form = request.param
    folder = trained[head]
    engine = load_engine("vllm", folder / form, **SMALL)
    yield engine, TransformersEngine.load(folder / "base", adapter=folder / "adapter")
    del engine
    gc.collect()


def ends_of(engine: Any) -> set[int]:
    """Return what is read and ends a response: `<CNF>`, nothing of a pair."""
    return set(engine.reader.readout.ids) - set(engine.reader.banned)


def noted_last_tokens(engine: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the last token of every sample as vLLM wrote it."""
    noted: list[int] = []
    plain = engine._generation

    def generation(sample: Any) -> Any:
        noted.append(sample.token_ids[-1])
        return plain(sample)

    monkeypatch.setattr(engine, "_generation", generation)
    return noted


def test_greedy_answers_are_the_same_tokens_with_the_same_c(both: Any) -> None:
    import vllm_models

    fast, reference = both
    prompts = vllm_models.prompts()
    found, wanted = dict(fast.generate(prompts, GREEDY)), dict(reference.generate(prompts, GREEDY))
    assert sum(samples[0].finish_reason == "stop" for samples in wanted.values()) > 2
    for index in range(len(prompts)):
        assert_alike(found[index][0], wanted[index][0], CLOSE)


def test_sampled_answers_have_the_c_that_transformers_reads(
    both: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import vllm_models

    fast, reference = both
    last = noted_last_tokens(fast, monkeypatch)
    prompts = vllm_models.prompts()
    rows = [(prompts[i], g) for i, made in fast.generate(prompts, SAMPLED) for g in made]
    assert len(rows) == 4 * len(prompts)
    assert len({g.token_ids for _, g in rows}) > len(prompts)
    ended = [(p, g) for p, g in rows if is_whole(g)]
    assert len(ended) > 10
    contexts, responses = [p for p, _ in ended], [g.token_ids for _, g in ended]
    wanted = reference.confidences(contexts, responses)
    assert [g.confidence for _, g in ended] == pytest.approx(wanted, abs=CLOSE)
    for (_, g), (logprobs, end) in zip(ended, reference.logprobs(contexts, responses), strict=True):
        assert g.logprobs == pytest.approx(logprobs, abs=CLOSE)
        assert g.end_logprob == pytest.approx(end, abs=CLOSE)
    assert set(last) >= {3, *ends_of(fast)}  # some ended on EOS, some on <CNF>
    again = [g for _, made in fast.generate(prompts, SAMPLED) for g in made]
    assert [g.token_ids for g in again] == [g.token_ids for _, g in rows]


def test_given_responses_are_rated_as_transformers_rates_them(both: Any) -> None:
    import vllm_models

    fast, reference = both
    prompts = vllm_models.prompts(6)
    responses = [p[::-1][: 2 * (i % 4)] for i, p in enumerate(prompts)]
    tokens = list(range(4, 204))
    wanted = reference.next_token_probs(prompts, tokens)
    assert fast.next_token_probs(prompts, tokens) == pytest.approx(wanted, abs=CLOSE)
    if fast._requests.lora is not None:
        with pytest.raises(ModelError, match="merged"):
            fast.confidences(prompts, responses)  # vLLM itself fails there, in the middle of a step
        return
    wanted = reference.confidences(prompts, responses)
    assert fast.confidences(prompts, responses) == pytest.approx(wanted, abs=CLOSE)
    for found, (logprobs, end) in zip(
        fast.logprobs(prompts, responses), reference.logprobs(prompts, responses), strict=True
    ):
        assert found[0] == pytest.approx(logprobs, abs=CLOSE)
        assert found[1] == pytest.approx(end, abs=CLOSE)


def test_a_closed_stream_frees_the_engine_and_leaves_other_samples_as_they_are(both: Any) -> None:
    import vllm_models

    fast, _ = both
    prompt = vllm_models.prompts()[3]
    ((_, together),) = fast.generate([prompt], SAMPLED, keys=["q"])
    stream = fast.stream(prompt, SAMPLED, "q")
    assert dict(stream.start(range(4))) == dict(enumerate(together))
    running = stream.start(range(4, 12))
    number, _ = next(running)
    running.close()
    assert 4 <= number < 12
    assert not fast._requests._engine.has_unfinished_requests()
    assert dict(stream.start(range(4))) == dict(enumerate(together))


@pytest.mark.parametrize("kind", CARRIED)
def test_a_layer_in_the_middle_is_carried_to_the_end(kind: str, tmp_path: Path) -> None:
    """vLLM gives the heads of a Qwen 2 the size that the wider model does not have."""
    import vllm_models
    from grace.engines.transformers import TransformersEngine

    folder = vllm_models.write_fitted(tmp_path, 1, kind)
    reference = TransformersEngine.load(folder / "base", adapter=folder / "adapter")
    prompts, read = vllm_models.prompts(), 0
    wanted = dict(reference.generate(prompts, GREEDY))
    confidences = reference.confidences(prompts, prompts)
    fast = load_engine("vllm", folder / "merged", **SMALL)  # changes classes of transformers
    for index, (a,) in fast.generate(prompts, GREEDY):
        (b,) = wanted[index]
        assert a.token_ids == b.token_ids
        assert a.logprobs == pytest.approx(b.logprobs, abs=CLOSE)
        assert a.trace == pytest.approx(b.trace, abs=CLOSE)
        assert a.confidence == pytest.approx(b.confidence, abs=CLOSE)
        read += a.confidence is not None
    assert read > 0
    assert fast.confidences(prompts, prompts) == pytest.approx(confidences, abs=CLOSE)
    del fast
    gc.collect()


@pytest.mark.parametrize("form", ["merged", "vllm-lora"])
def test_read_at_the_prompt_cnf_is_no_part_of_what_is_drawn(form: str, tmp_path: Path) -> None:
    import vllm_models
    from grace.engines.transformers import TransformersEngine

    folder = vllm_models.write_trained(tmp_path, tied=False, read_at="prompt")
    fast = load_engine("vllm", folder / form, **SMALL)
    reference = TransformersEngine.load(folder / "base", adapter=folder / "adapter")
    prompts = vllm_models.prompts(6)
    wanted = dict(reference.generate(prompts, GREEDY))
    for index, (a,) in fast.generate(prompts, GREEDY):
        (b,) = wanted[index]
        assert a.token_ids == b.token_ids
        assert a.logprobs == pytest.approx(b.logprobs, abs=CLOSE)
        assert a.confidence == pytest.approx(b.confidence, abs=CLOSE)
    assert fast.confidences(prompts, prompts) == pytest.approx(
        reference.confidences(prompts, prompts), abs=CLOSE
    )
    pairs = zip(fast.logprobs(prompts, prompts), reference.logprobs(prompts, prompts), strict=True)
    for (found, end), (expected, expected_end) in pairs:
        assert [*found, end] == pytest.approx([*expected, expected_end], abs=CLOSE)


def test_in_half_precision_the_head_is_exact(trained: Any) -> None:
    import numpy as np

    import vllm_models
    from grace.engines.transformers import TransformersEngine

    fast = load_engine("vllm", trained["untied"] / "merged", dtype="bfloat16", **SMALL)
    exact = TransformersEngine.load(trained["untied"] / "merged", dtype="bfloat16")
    prompts = vllm_models.prompts()
    difference = np.abs(
        np.array(fast.confidences(prompts, prompts)) - exact.confidences(prompts, prompts)
    )
    print(f"bfloat16: |dc| mean {difference.mean():.2e}, most {difference.max():.2e}")
    assert difference.max() < 0.02


def test_an_adapter_as_trained_is_refused_with_the_command_that_helps(trained: Any) -> None:

    with pytest.raises(ModelError, match="grace export"):
        load_engine("vllm", trained["tied"] / "adapter")


def test_a_base_model_is_sampled_as_transformers_samples_it(trained: dict[str, Path]) -> None:
    import vllm_models
    from grace.engines.transformers import TransformersEngine

    base = trained["untied"] / "base"
    fast = load_engine("vllm", base, needs_cnf=False, **SMALL)
    prompts = vllm_models.prompts()
    wanted = dict(TransformersEngine.load(base).generate(prompts, GREEDY))
    for index, (made,) in fast.generate(prompts, GREEDY):
        (other,) = wanted[index]
        assert made.token_ids == other.token_ids
        assert made.logprobs == pytest.approx(other.logprobs, abs=CLOSE)
        assert (made.confidence, made.trace) == (None, ())
    del fast
    gc.collect()
