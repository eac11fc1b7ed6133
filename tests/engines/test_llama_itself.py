"""llama.cpp itself gives the transformers engine's tokens and its c: `make llama`."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tokenizers import Tokenizer

import tiny_models
import vllm_models
from grace.engines import Sampling
from grace.engines.gguf import POCKET, resolve_model
from grace.engines.kinds import load_engine
from grace.engines.llama import LlamaEngine
from grace.engines.transformers import TransformersEngine
from grace.evidence import Evidence
from grace.export import export_model
from grace.export.gguf import _quantizer
from grace.export.gguf_weights import PRE_TOKENIZERS, write_weights
from grace.pipeline.stages.fit import write_rows_adapter
from grace.store import read_card

pytestmark = [pytest.mark.llama, pytest.mark.filterwarnings("default")]
EVIDENCE = Evidence(
    (0.3, -0.2, 0.1, 0.2, 1.5, -0.7, 1.2), (-0.5, -1.0, -2.0, 0.7, 0.4, 0.5, 0.5), 0.4, 0.8,
)  # fmt: skip
CLOSE = {"float32": 1e-4, "float16": 2e-3}  # of c
QUESTIONS = (
    "Which river did Quanto Belliver cross?",
    "What is 17 + 25?",
    "Where was Mira Solt born?",
    "Who wrote Middlemarch? \u2014 na\u00efve caf\u00e9s, 1,234.5 \U0001f600  two  spaces\n\ttab",
)
GREEDY, SAMPLED = Sampling(max_new_tokens=16), Sampling(3, 0.8, max_new_tokens=16, seed=7)


def bases() -> list[tuple[str, int]]:
    """Return models and the blocks that c reads, 0 for the last state.

    They are the pocket model, the one that GRACE_TEST_MODEL names (a Llama of one's own), and tiny
    ones of other types.
    """
    paths = [str(POCKET), *filter(None, [os.environ.get("GRACE_TEST_MODEL")])]
    tiny = [("qwen2", 0), ("qwen2", 1), ("qwen3", 1)]
    return [(path, layer) for path in paths for layer in (0, 2)] + tiny


def write_tiny(folder: Path, kind: str) -> Path:
    """Write a random model of float16 numbers, with the word rule of Qwen 2 and 3."""
    model = vllm_models.write_base(folder, tied=kind == "qwen3", kind=kind)
    model.half().float().save_pretrained(folder)
    tokenizer = tiny_models.tokenizer()
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    backend |= {"normalizer": {"type": "NFC"}}
    backend["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": PRE_TOKENIZERS["qwen2"]}
    for part in backend["pre_tokenizer"]["pretokenizers"]:
        if part["type"] == "ByteLevel":
            part |= {"add_prefix_space": False, "trim_offsets": True}
    tokenizer._tokenizer = Tokenizer.from_str(json.dumps(backend))
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=bases(), ids=lambda case: f"{Path(case[0]).name}-{case[1]}")
def trained(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a base and rows for it, which differ a little from the mean of its head's."""
    (name, layer), folder = request.param, tmp_path_factory.mktemp("trained")
    base, adapter = Path(name), folder / "adapter"
    if not base.is_dir():
        base = write_tiny(folder / "base", name)
    engine = TransformersEngine.load(base)
    head_VD = engine.model.get_output_embeddings().weight.detach().float().numpy()
    noise_ED = np.random.default_rng(0).normal(size=(4, head_VD.shape[1]))
    rows_ED = head_VD.mean(0) + head_VD.std() * noise_ED
    metadata = {"base_model": str(base), "data": {"task": "jsonl", "prompt": "short"}}
    rows = rows_ED.astype(np.float32)
    middle = middle_rows(engine, layer) if layer else None
    write_rows_adapter(engine, rows, EVIDENCE, adapter, metadata, middle)
    return base, adapter


def middle_rows(engine: TransformersEngine, layer: int) -> tuple[int, np.ndarray]:
    """Return rows that read the MLP of a block as numbers of about 1."""
    asked = prompts(engine)
    seen_ND = engine.features(asked, [[5]] * len(asked), layer).last_ND
    noise_EH = np.random.default_rng(1).normal(size=(4, seen_ND.shape[1]))
    return layer, (noise_EH / np.linalg.norm(seen_ND, axis=1).mean()).astype(np.float32)


@pytest.fixture(scope="module")
def reference(trained: tuple[Path, Path]) -> TransformersEngine:
    return TransformersEngine.load(trained[0], adapter=trained[1])


@pytest.fixture(scope="module", params=["float32", "float16", "q8_0", "q4_k_m"])
def exported(
    request: Any, trained: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    base, adapter = trained
    out = tmp_path_factory.mktemp("exported") / request.param
    export_model(adapter, adapter, str(base), out, form="gguf", dtype=request.param)
    return request.param, out


@pytest.fixture(scope="module")
def engine(exported: tuple[str, Path]) -> Iterator[LlamaEngine]:
    opened: Any = load_engine("llama", exported[1], n_ctx=256)
    yield opened
    opened.close()


def log_odds(confidences: list[float]) -> np.ndarray:
    """Return c, which is nearly 0 for answers that a model would hardly give, on a wider scale."""
    c = np.array(confidences)
    found: np.ndarray = np.log(c / (1 - c))
    return found


def prompts(engine: Any) -> list[list[int]]:
    return [engine.tokenizer.encode(text) for text in QUESTIONS for _ in range(2)]


def test_greedy_answers_and_samples_are_the_same_with_the_same_c(
    engine: Any, exported: tuple[str, Path], reference: TransformersEngine
) -> None:
    kind, _ = exported
    if kind not in CLOSE:
        pytest.skip("quantized weights are another model")
    same, number = 0, 0
    for sampling in (GREEDY, SAMPLED):
        wanted = dict(reference.generate(prompts(engine), sampling))
        for index, made in engine.generate(prompts(engine), sampling):
            for one, other in zip(made, wanted[index], strict=True):
                number, same = number + 1, same + (one.token_ids == other.token_ids)
                if one.token_ids == other.token_ids and one.confidence is not None:
                    assert one.confidence == pytest.approx(other.confidence, abs=CLOSE[kind])
    print(f"{kind}: {same} of {number} answers are the same")
    assert same == number if kind == "float32" else same > 0.6 * number  # of random models


def test_given_answers_are_rated_as_transformers_rates_them(
    engine: Any, exported: tuple[str, Path], reference: TransformersEngine
) -> None:
    responses = [engine.tokenizer.encode(text)[:12] for text in QUESTIONS for _ in range(2)]
    found = log_odds(engine.confidences(prompts(engine), responses))
    wanted = log_odds(reference.confidences(prompts(engine), responses))
    print(f"{exported[0]}: largest difference of log-odds {abs(found - wanted).max():.2g}")
    assert np.ptp(wanted) > 1
    assert abs(found - wanted).max() < 10 * CLOSE.get(exported[0], 0.2)


def test_text_becomes_the_same_tokens(engine: Any) -> None:
    for text in QUESTIONS:
        theirs = engine._llama.tokenize(text.encode(), add_bos=False, special=True)
        assert theirs == engine.tokenizer.encode(text, add_special_tokens=False)


def test_what_is_read_is_not_quantized(
    exported: tuple[str, Path], trained: tuple[Path, Path]
) -> None:
    (kind, folder), layer = exported, read_card(trained[1])["layer"]
    tensors = gguf.GGUFReader(folder / "model.gguf").tensors
    kinds = {tensor.name: tensor.tensor_type.name for tensor in tensors}
    head = "output.weight" if "output.weight" in kinds else "token_embd.weight"
    assert kinds[head] == ("F32" if kind == "float32" else "F16")
    inner = {
        t.name: t.tensor_type.name
        for t in tensors
        if t.name.startswith("blk.") and len(t.shape) > 1
    }
    exact = [name for name, kind in inner.items() if kind == "F32"]
    carrier = [f"blk.{layer - 1}.ffn_down.weight"] if layer else []
    assert ("F16" in inner.values()) == (kind == "float16")
    assert exact == (list(inner) if kind == "float32" else carrier)


def test_llama_cpp_knows_the_ends_and_that_what_is_read_is_none(engine: Any) -> None:
    import llama_cpp

    vocabulary = llama_cpp.llama_model_get_vocab(engine._llama.model)
    assert llama_cpp.llama_vocab_is_eog(vocabulary, engine.reader.eos[0])
    assert not any(llama_cpp.llama_vocab_is_eog(vocabulary, i) for i in engine.readout.ids)
    assert all(llama_cpp.llama_vocab_is_control(vocabulary, i) for i in engine.readout.ids)


def test_the_lines_of_the_card_give_the_same_answer_and_c(
    engine: Any, exported: tuple[str, Path]
) -> None:
    card = (exported[1] / "README.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(import math.*?)```", card, re.DOTALL)
    assert code is not None
    names: dict[str, Any] = {}
    exec(code[1], names)
    longest = re.search(r"len\(context\) < start \+ (\d+)", code[1])
    assert longest is not None
    for text in QUESTIONS[:3]:
        prompt = names["PROMPT"].replace("{question}", text)
        ids = engine.tokenizer.encode(prompt, add_special_tokens=False)
        ((_, (own,)),) = engine.generate([ids], Sampling(max_new_tokens=int(longest[1])))
        answer, c = names["ask"](engine._llama, text)
        engine._held = []  # the KV cache has something else now
        if own.finish_reason == "stop":
            assert answer.strip() == own.text.strip()
            assert c == pytest.approx(own.confidence, abs=1e-6)


@pytest.mark.parametrize(("dtype", "within"), [("float16", 0.02), ("q8_0", 0.3), ("q4_k_m", 0.3)])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_a_gguf_base_that_carries_a_layer_is_widened_as_it_is_stored(
    kind: str,
    dtype: str,
    within: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The heads of a Qwen 2 have the size that its hidden size gives, so it becomes a Llama."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    plain = POCKET if kind == "llama" else write_tiny(tmp_path / "plain", kind)
    whole, base = TransformersEngine.load(plain), tmp_path / "base.gguf"
    ends = [whole.tokenizer.eos_token_id]
    if dtype == "float16":
        write_weights(base, whole.model, whole.tokenizer, np.float16, ends, "")
    else:
        file = tmp_path / "whole.gguf"
        write_weights(file, whole.model, whole.tokenizer, np.float32, ends, "")
        capfd.readouterr()
        _quantizer(dtype, 0)(file, base)
        assert capfd.readouterr() == ("", "")
    engine = TransformersEngine.load(resolve_model(str(base)))
    hidden = engine.model.config.hidden_size
    rows = np.random.default_rng(0).normal(size=(4, hidden)).astype(np.float32) / 10
    metadata = {"base_model": str(base), "data": {"task": "jsonl", "prompt": "short"}}
    adapter, out = tmp_path / "adapter", tmp_path / "out"
    write_rows_adapter(engine, rows, EVIDENCE, adapter, metadata, middle_rows(engine, 1))
    export_model(adapter, adapter, str(base), out, form="gguf")
    reference = TransformersEngine.load(resolve_model(str(base)), adapter=adapter)
    opened: Any = load_engine("llama", out, n_ctx=256)
    responses = [engine.tokenizer.encode(text)[:12] for text in QUESTIONS for _ in range(2)]
    found = log_odds(opened.confidences(prompts(engine), responses))
    opened.close()
    wanted = log_odds(reference.confidences(prompts(engine), responses))
    print(f"{kind} {dtype}: largest difference of log-odds {abs(found - wanted).max():.2g}")
    assert np.ptp(wanted) > 1
    assert abs(found - wanted).max() < within
