"""A GGUF file is a model like any other: unpacked once, whole or not at all, and checked."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

import forks
import tiny_gguf
import tiny_models
from grace.config import DataSettings, GraceSettings, ModelSettings, RunSettings
from grace.engines import Sampling
from grace.engines.base import load_engine
from grace.engines.gguf import resolve_model
from grace.engines.gguf.header import read_header
from grace.engines.local import loading
from grace.engines.transformers import TransformersEngine
from grace.errors import ModelError, RunError
from grace.pipeline.context import Engines
from grace.pipeline.settings import needed_length
from grace.pipeline.stages.answers import check_model
from grace.pipeline.stages.fit import check_layer
from grace.records import Question
from grace.store import RunDir

CHOICE = Question("q", "jsonl", "Which?", ("A",), ("one", "two"))
TEXT = "Who wrote 1945 books in ½ a year?"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "grace" / "gguf"


def write(folder: Path, name: str = "llama_tied", **options: Any) -> tuple[Path, Any, Any]:
    model, tokenizer = tiny_models.model(name), tiny_models.tokenizer()
    return tiny_gguf.write(folder / "tiny.gguf", model, tokenizer, **options), model, tokenizer


def refused(path: Path, match: str) -> None:
    with pytest.raises(ModelError, match=match) as caught:
        resolve_model(str(path))
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)


@pytest.mark.parametrize("name", ["llama_tied", "llama_untied"])
@pytest.mark.parametrize("quantize", [False, True])
def test_it_answers_as_the_same_weights_in_safetensors_do(
    tmp_path: Path, name: str, quantize: bool
) -> None:
    file, model, tokenizer = write(tmp_path, name, quantize=quantize)
    model.save_pretrained(tmp_path / "plain")
    tokenizer.save_pretrained(tmp_path / "plain")
    ours = TransformersEngine.load(resolve_model(str(file)))
    plain = TransformersEngine.load(tmp_path / "plain")
    assert ours.reader.stops == plain.reader.stops
    prompts = tiny_models.prompts(tokenizer)
    sampling = Sampling(num_samples=2, temperature=1.0, max_new_tokens=12)
    for (_, left), (_, right) in zip(
        ours.generate(prompts, sampling), plain.generate(prompts, sampling), strict=True
    ):
        assert left == right
    probabilities = [engine.next_token_probs(prompts, range(320)) for engine in (ours, plain)]
    assert abs(probabilities[0] - probabilities[1]).max() <= 1e-6


def test_weights_are_unpacked_where_transformers_could_keep_them_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    packing = pytest.importorskip(
        "transformers.quantizers.quantizer_gguf",
        reason="this version of transformers unpacks every GGUF file",
    )
    monkeypatch.setattr(packing, "get_gguf_kernel", lambda: pytest.fail("it asked for a kernel"))
    file, model, _ = write(tmp_path, quantize=True)
    ours = TransformersEngine.load(resolve_model(str(file), "bfloat16"))
    assert sorted(ours.model.state_dict()) == sorted(model.state_dict())
    assert "weights packed" not in capfd.readouterr().err


def scaled_llama(**changes: float) -> Any:
    """Return a tiny Llama whose rotary positions are scaled as in Llama 3.1."""
    plain = tiny_models.model("llama_tied")
    rope = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0}
    rope |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192, **changes}
    config = copy.deepcopy(plain.config)
    config.rope_parameters = rope
    scaled = type(plain)(config).eval()
    scaled.load_state_dict(plain.state_dict())
    return scaled


def test_the_scaled_positions_of_llama_3_are_kept(tmp_path: Path) -> None:
    model, plain = scaled_llama(), tiny_models.model("llama_tied")
    file = tiny_gguf.write(tmp_path / "scaled.gguf", model, tiny_models.tokenizer())
    made = TransformersEngine.load(resolve_model(str(file))).model
    ids = torch.arange(10, 210)[None]
    with torch.inference_mode():
        assert (made(ids).logits - model(ids).logits).abs().max() < 1e-4
        assert (plain(ids).logits - model(ids).logits).abs().max() > 1e-2


def test_positions_scaled_in_another_way_are_refused(tmp_path: Path) -> None:
    model = scaled_llama(high_freq_factor=64.0)
    file = tiny_gguf.write(tmp_path / "other.gguf", model, tiny_models.tokenizer())
    refused(file, "scales its rotary positions .rope_freqs.weight., which transformers")


def test_its_tokens_and_its_chat_template_are_those_of_the_original(tmp_path: Path) -> None:
    file, _, tokenizer = write(tmp_path)
    ours = TransformersEngine.load(resolve_model(str(file))).tokenizer
    assert ours.chat_template == tokenizer.chat_template
    chat = [{"role": "user", "content": TEXT}]
    for one in (ours, tokenizer):
        assert one.encode(TEXT) == tokenizer.encode(TEXT)
        shown = one.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        assert shown == tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, return_dict=False
        )


def test_a_file_without_a_template_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = tiny_models.tokenizer(chat_template=None)
    file = tiny_gguf.write(tmp_path / "base.gguf", tiny_models.model("llama_tied"), tokenizer)
    made = TransformersEngine.load(resolve_model(str(file)))
    assert made.tokenizer.chat_template is None
    shown = capsys.readouterr()
    assert "without a chat template; answers end at <|im_end|>" in shown.err and shown.out == ""


def test_numbers_are_split_into_digits_where_the_file_wants_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, model, tokenizer = write(tmp_path)
    found = []
    for kind in ("smollm", "made-up"):
        file = tmp_path / f"{kind}.gguf"
        tiny_gguf.write(file, model, tokenizer, extra={"tokenizer.ggml.pre": kind})
        made = TransformersEngine.load(resolve_model(str(file))).tokenizer
        words = made.backend_tokenizer.pre_tokenizer.pre_tokenize_str("in 1945")
        found.append([word for word, _ in words])
    assert found == [["in", "Ġ", "1", "9", "4", "5"], ["in", "Ġ1945"]]
    assert "does not know how it splits words ('made-up')" in capsys.readouterr().err


def test_every_end_that_the_file_names_ends_an_answer(tmp_path: Path) -> None:
    file, _, _ = write(tmp_path, extra={"tokenizer.ggml.eot_token_id": 2})
    assert TransformersEngine.load(resolve_model(str(file))).reader.stops == (3, 2)


def test_a_file_that_names_no_end_or_an_impossible_one_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = tiny_models.tokenizer()
    tokenizer.eos_token = None
    for extra in ({}, {"tokenizer.ggml.eot_token_id": 4000}):
        file = tmp_path / f"{len(extra)}.gguf"
        tiny_gguf.write(file, tiny_models.model("llama_tied"), tokenizer, extra=extra)
        folder = resolve_model(str(file))
        assert "answers end at a token that the file does not name" in capsys.readouterr().err
        with pytest.raises(ModelError, match="neither tokenizer nor model names an end token"):
            TransformersEngine.load(folder)


def test_a_bos_that_the_file_wants_first_comes_first(tmp_path: Path) -> None:
    file, _, _ = write(tmp_path, extra={"tokenizer.ggml.add_bos_token": True})
    made = TransformersEngine.load(resolve_model(str(file))).tokenizer
    assert made("a")["input_ids"] == [1, *made("a", add_special_tokens=False)["input_ids"]]


def test_a_tokenizer_that_is_not_the_files_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tiny_models.tokenizer()
    monkeypatch.setattr("grace.engines.gguf.unpacking._load_tokenizer", lambda folder: made)
    file, _, _ = write(tmp_path, extra={"tokenizer.ggml.add_bos_token": True})
    refused(file, "wants a BOS before a text, and transformers does the opposite")
    monkeypatch.setattr(made, "convert_tokens_to_ids", lambda token: 320)
    refused(file, "has '<s>' as token 1 of 320, which becomes 320 in transformers")


def test_a_folder_with_one_file_means_that_file(tmp_path: Path) -> None:
    file, _, _ = write(tmp_path)
    assert resolve_model(str(tmp_path)) == resolve_model(str(file))
    (tmp_path / "other.GGUF").write_bytes(file.read_bytes())
    refused(tmp_path, r"has 2 GGUF files \(other.GGUF, tiny.gguf\); name one of them")
    (tmp_path / "config.json").write_text("{}")
    assert resolve_model(str(tmp_path)) == str(tmp_path)


def test_the_second_time_it_is_found_and_gguf_is_not_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, _, _ = write(tmp_path)
    first = resolve_model(str(file))
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 2 and "unpacking" in told[0] and str(first) in told[0]
    written = {f: f.stat().st_mtime_ns for f in Path(first).iterdir()}
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert resolve_model(str(file)) == first
    assert capsys.readouterr().err == ""
    assert {f: f.stat().st_mtime_ns for f in Path(first).iterdir()} == written


def test_for_bfloat16_no_float32_weights_are_written_and_the_model_is_the_same(
    tmp_path: Path, cache: Path
) -> None:
    file, _, _ = write(tmp_path, quantize=True)
    model = ModelSettings(path=str(file), dtype="bfloat16")
    run = RunSettings(data=DataSettings(task="pocket_sums"), model=model)
    check_model(run)
    half = Engines(RunDir(tmp_path), run).backbone.model
    (weights,) = cache.rglob("*.safetensors")
    assert {one.dtype for one in load_file(weights).values()} == {torch.bfloat16}
    whole = resolve_model(str(file), "float32")
    assert {one.dtype for one in load_file(f"{whole}/{weights.name}").values()} == {torch.float32}
    rounded = TransformersEngine.load(whole, dtype="bfloat16").model
    for one, other in zip(half.parameters(), rounded.parameters(), strict=True):
        assert torch.equal(one, other)
    assert resolve_model(str(file), "bfloat16") == whole, "one directory is enough"


@pytest.mark.parametrize(
    ("device", "has_gpu", "half"),
    [("auto", True, True), ("cuda:1", True, True), ("cpu", True, False), ("auto", False, False)],
)
def test_auto_is_bfloat16_for_a_file_on_a_gpu_wherever_it_is_loaded(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cache: Path,
    device: str,
    *,
    has_gpu: bool,
    half: bool,
) -> None:
    file, _, _ = write(tmp_path)
    kind = torch.bfloat16 if half else torch.float32
    run = RunSettings(
        data=DataSettings(task="pocket_sums"), model=ModelSettings(path=str(file), device=device)
    )
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: has_gpu)
        patch.setattr(torch.cuda, "device_count", lambda: 2 * has_gpu)
        check_model(run)
        needed_length(None, [CHOICE], run.model)
        check_layer(dataclasses.replace(run, grace=GraceSettings(layer=1)))
        (weights,) = cache.rglob("*.safetensors")
        opened: list[Any] = []
        patch.setattr(TransformersEngine, "open", lambda opening: opened.append(opening))
        load_engine("transformers", file, device=device)
    assert {one.dtype for one in load_file(weights).values()} == {kind}
    assert opened[0].path == str(weights.parent) == resolve_model(str(file))
    where = torch.device("cuda" if half else "cpu")
    for path in (weights.parent, resolve_model(str(file), "float32")):
        assert loading._pick_dtype("auto", where, path) == kind
    assert loading._pick_dtype("auto", torch.device("cuda"), tmp_path) == "auto"


def test_another_file_of_the_same_name_is_another_model(tmp_path: Path) -> None:
    file, model, tokenizer = write(tmp_path)
    first = resolve_model(str(file))
    tiny_gguf.write(file, model, tokenizer, extra={"general.name": "changed"})
    second = resolve_model(str(file))
    assert first != second and Path(first).is_dir() and Path(second).is_dir()


def test_neighbours_of_the_file_have_no_say(tmp_path: Path) -> None:
    file, _, tokenizer = write(tmp_path)
    wrong = {"chat_template": "wrong", "eos_token": "<pad>", "tokenizer_class": "BertTokenizer"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(wrong))
    made = TransformersEngine.load(resolve_model(str(file)))
    assert made.tokenizer.chat_template == tokenizer.chat_template
    assert made.tokenizer.eos_token == "<|im_end|>"


def resolve(file: Path, cache: str) -> None:
    os.environ["XDG_CACHE_HOME"] = cache
    resolve_model(str(file))


def test_a_kill_leaves_nothing_half_made_and_the_next_process_starts_again(
    tmp_path: Path, cache: Path
) -> None:
    file, _, tokenizer = write(tmp_path)
    running, said = forks.start(resolve, file, os.environ["XDG_CACHE_HOME"])
    while not list(cache.glob("*/.tiny.partial")) and running.is_alive():
        time.sleep(0.01)
    running.kill()
    running.join()
    said.close()
    assert list(cache.glob("*/.tiny.partial")) and not list(cache.glob("*/tiny"))
    made = TransformersEngine.load(resolve_model(str(file)))
    assert made.tokenizer.encode(TEXT) == tokenizer.encode(TEXT)
    assert not list(cache.glob("*/*.partial"))


def test_a_cache_that_cannot_be_written_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, _, _ = write(tmp_path)
    (tmp_path / "taken").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "taken"))
    with pytest.raises(RunError, match=r"cannot write .*taken/grace/gguf.*: Not a directory"):
        resolve_model(str(file))


def test_a_file_that_is_not_there_or_something_else_is_refused(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere.gguf", "does not exist; give a GGUF file or a model directory")
    other = tmp_path / "other.gguf"
    for content in (b"", b"GG", b"PK\x03\x04 and more"):
        other.write_bytes(content)
        refused(other, "is not a GGUF file")


def test_a_file_that_is_cut_short_is_refused_at_any_length(tmp_path: Path, cache: Path) -> None:
    file, _, _ = write(tmp_path)
    whole = file.read_bytes()
    start = data_start(file)
    for length in (4, 10, 24, 100, start // 2, start - 40, start, len(whole) - 1):
        file.write_bytes(whole[:length])
        refused(file, "is cut short")
    assert not list(cache.glob("*/tiny")) and not list(cache.glob("*/*.partial"))


def data_start(file: Path) -> int:
    return min(int(tensor.data_offset) for tensor in read_header(file).tensors)


def number(value: int, size: int = 8) -> bytes:
    return value.to_bytes(size, "little")


def text(value: bytes) -> bytes:
    return number(len(value)) + value


def array(kind: int, length: int, content: bytes = b"") -> bytes:
    return text(b"general.tags") + number(9, 4) + number(kind, 4) + number(length) + content


HOSTILE = {
    "a tensor of 120,000 dimensions": (1, 0, text(b"t") + number(120_000, 4) + number(3) * 120_000),
    "2^60 values": (0, 1, array(0, 2**60)),
    "2^60 strings": (0, 1, array(8, 2**60)),
    "a million values of one byte": (0, 1, array(0, 2**62, bytes(2**20))),
    "arrays in arrays": (0, 1, array(9, 1, (number(9, 4) + number(1)) * 10**5)),
    "2^60 keys": (0, 2**60, (text(b"") + number(0, 4) + b"1") * 10**4),
    "2^60 tensors": (2**60, 0, b""),
    "2^62 dimensions": (1, 0, text(b"t") + number(2**32 - 1, 4)),
    "a tensor of 2^66 elements": (1, 0, text(b"t") + number(3, 4) + number(2**22) * 3 + bytes(12)),
    "a name of 2^63 bytes": (1, 0, number(2**63)),
    "no UTF-8": (0, 1, text(b"\xff") + number(0, 4) + b"1"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_file_is_refused_after_a_bounded_number_of_reads(
    kind: str, tmp_path: Path
) -> None:
    tensors, keys, content = HOSTILE[kind]
    file = tmp_path / "hostile.gguf"
    counts = number(tensors) + number(keys)
    file.write_bytes(b"GGUF" + number(3, 4) + counts + content + bytes(2**17))
    refused(file, "is cut short or damaged")


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_damaged_head_is_read_or_refused_and_nothing_else(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp() / "damaged"
    folder.mkdir(exist_ok=True)
    if not (folder / "whole.gguf").exists():
        model, tokenizer = tiny_models.model("llama_tied"), tiny_models.tokenizer()
        tiny_gguf.write(folder / "whole.gguf", model, tokenizer)
    whole = bytearray((folder / "whole.gguf").read_bytes())
    at = data.draw(st.integers(0, data_start(folder / "whole.gguf") - 1))
    new = data.draw(st.binary(min_size=1, max_size=9))
    whole[at : at + len(new)] = new
    (folder / "damaged.gguf").write_bytes(whole)
    try:
        header = read_header(folder / "damaged.gguf")
    except ModelError as error:
        assert "\n" not in str(error)
    else:
        assert all(isinstance(token, str) for token in header.tokens)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"architecture": "clip"}, "cannot read .*clip"),
        ({"architecture": "made-up"}, "cannot read .*made-up"),
        ({"extra": {"llama.block_count": 10**9}}, "1,000,000,000 layers for 20 tensors"),
        ({"extra": {"split.count": 3}}, "is one of 3 parts; join them first"),
        ({"extra": {"llama.rope.scaling.type": "yarn"}}, "scales its rotary positions .yarn."),
        ({"leave_out": "blk.1.ffn_up.weight"}, "lacks 1 of the model's tensors"),
    ],
)
def test_what_cannot_be_read_faithfully_is_refused(
    tmp_path: Path, options: dict[str, Any], match: str
) -> None:
    file, _, _ = write(tmp_path, **options)
    refused(file, match)


def test_a_file_of_a_newer_format_or_with_unknown_types_is_refused(tmp_path: Path) -> None:
    file, _, _ = write(tmp_path)
    whole = file.read_bytes()
    file.write_bytes(whole[:4] + (9).to_bytes(4, "little") + whole[8:])
    refused(file, "has GGUF version 9, but only versions 2 and 3 are supported")
    name = b"output_norm.weight"
    at = whole.index(name) + len(name) + 4 + 8
    file.write_bytes(whole[:at] + (250).to_bytes(4, "little") + whole[at + 4 :])
    refused(file, "has a tensor of type 250, which gguf .* does not know")
