"""The lines of a card, run as they stand: they give the confidence that `grace` gives."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import openai
import pytest
from safetensors.torch import load_file, save_file
from test_forms import export, train

import grace
from alike import assert_alike
from fake_upstream import MODEL, serving
from grace.engines import Sampling
from grace.errors import ModelError
from grace.evidence import confidence, reading
from grace.model.loading import connect

pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*tie_word_embeddings.*"),
]
QUESTIONS = [*(f"What is {n} and {n * 7}?" for n in range(8)), "Is {options} a {question}?"]
CHOICE = {"task": "arc_challenge", "system": "Choose."}
EMOJI = {"task": "trivia_qa", "system": "Kurz, bitte \N{WINKING FACE}"}


def code_of(folder: Path, wanted: str) -> str:
    text = (folder / "README.md").read_text(encoding="utf-8")
    found: list[str] = [
        c
        for c in re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
        if wanted in c
    ]
    assert len(found) == 1
    assert "grace" not in found[0]
    return found[0]


def run(code: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(code, names)
    return names


@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("merged", {}),
        ("merged", {"evidence": None}),
        ("merged", {"read_at": "prompt"}),
        ("vllm-lora", {}),
        ("merged", {"data": CHOICE}),
        ("merged", {"data": EMOJI}),
    ],
    ids=["evidence", "plain", "prompt", "lora", "choice", "emoji"],
)
def test_the_lines_of_a_card_read_what_grace_reads(
    form: str, options: dict[str, Any], tmp_path: Path
) -> None:
    made = train("qwen2", tmp_path, **options)
    export(made, tmp_path / "out", form)
    lines = run(code_of(tmp_path / "out", "def ask"))
    model = grace.load(made.adapter)
    choices = ("4", "7") if options.get("data") == CHOICE else ()
    shown = "A. 4\nB. 7" if choices else ""
    cut = 0
    engine = made.engine
    with serving(engine.model, engine.tokenizer, [3]) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
        for question in QUESTIONS:
            text, c = lines["ask"](client, MODEL, question, shown)
            reply = model.ask(question, choices=choices)
            cut += c is None
            assert c == (
                None if reply.confidence is None else pytest.approx(reply.confidence, abs=1e-5)
            )
            assert c is None or text == reply.text
        client.close()
    assert cut < len(QUESTIONS)


@pytest.mark.parametrize("said", ["Fill in {question}.", "Fill in {options}."])
def test_a_prompt_that_says_what_stands_for_the_question_is_not_written(
    said: str, tmp_path: Path
) -> None:
    made = train("qwen2", tmp_path, data={"task": "trivia_qa", "system": said})
    export(made, tmp_path / "out", "merged")
    assert "def ask" not in code_of(tmp_path / "out", "def confidence")


def test_an_empty_answer_and_an_impossible_token_have_the_same_confidence(tmp_path: Path) -> None:
    made = train("qwen2", tmp_path)
    export(made, tmp_path / "out", "merged")
    read = run(code_of(tmp_path / "out", "def ask"))["confidence"]
    evidence = grace.load(made.adapter).engine.evidence  # type: ignore[attr-defined]
    for log_c in (-0.5, 0.0, -30.0, -9999.0):
        for logprobs in ([], [-0.1], [-0.1, -9999.0, -3.0], [0.0, 1e-6]):
            for end in (-0.7, -9999.0, 1e-6):
                expected = confidence([(reading(log_c),)], logprobs, end, evidence)
                assert read(log_c, logprobs, end) == pytest.approx(expected, rel=1e-9)


def test_peft_loads_an_adapter_by_the_lines_of_its_card(tmp_path: Path) -> None:
    made = train("llama_untied", tmp_path)
    out = tmp_path / "out"
    export(made, out, "adapter")
    loading = code_of(out, "PeftModel").replace("path/to/this/directory", str(out))
    names = run(loading)
    prompts, sampling = [[10, 11, 12]], Sampling(max_new_tokens=8)
    engine = type(made.engine)(names["model"], names["tokenizer"], evidence=made.engine.evidence)
    ((_, (found,)),), ((_, (wanted,)),) = (
        engine.generate(prompts, sampling) for engine in (engine, made.engine)
    )
    assert_alike(found, wanted, 1e-6)
    assert "def confidence" in code_of(out, "CNF =")


def test_in_front_of_a_server_an_adapter_ends_answers_where_its_base_does(tmp_path: Path) -> None:
    """Also where the base is no directory, whose configurations could be read."""
    made = train("qwen2", tmp_path)
    file = made.adapter / "grace.json"
    card = {**json.loads(file.read_text()), "base_model": "owner/name", "end_ids": [9]}
    with serving(made.engine.model, made.engine.tokenizer, [3]) as server:
        file.write_text(json.dumps(card))
        connected: Any = connect(server.url, made.adapter)
        assert 9 in connected.engine.reader.eos
        connected.engine.close()
        file.write_text(json.dumps({k: v for k, v in card.items() if k != "end_ids"}))
        with pytest.raises(ModelError, match="does not say where answers of owner/name end"):
            connect(server.url, made.adapter)


def test_a_proxy_refuses_a_folder_made_from_another_adapter_than_the_served_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = train("qwen2", tmp_path)
    served = tmp_path / "out"
    export(made, served, "merged")
    other = Path(shutil.copytree(made.adapter, tmp_path / "other"))
    weights = load_file(other / "adapter_model.safetensors")
    save_file(
        {name: 2 * value for name, value in weights.items()}, other / "adapter_model.safetensors"
    )
    with serving(made.engine.model, made.engine.tokenizer, [3]) as server:
        for root in (str(served), "/somewhere"):
            server.behaviour.root = root
            for folder in (served, made.adapter):
                connect(server.url, folder).engine.close()  # type: ignore[attr-defined]
        connect(server.url, other).engine.close()  # type: ignore[attr-defined]
        server.behaviour.root = str(served)
        for folder in (other, Path()):  # whatever folder one is in
            monkeypatch.chdir(other)
            with pytest.raises(ModelError, match="was made from another adapter than"):
                connect(server.url, folder)
        server.behaviour.root = ""
        connect(server.url, served).engine.close()  # type: ignore[attr-defined]


def test_a_card_recommends_a_proxy_only_where_it_can_read_the_confidence(tmp_path: Path) -> None:
    for read_at, serves in (("predict", True), ("feed", False)):
        out = tmp_path / read_at / "out"
        export(train("qwen2", tmp_path / read_at, read_at=read_at), out, "merged")
        card = (out / "README.md").read_text(encoding="utf-8")
        assert ("grace proxy" in card) == ("vllm serve" in card) == serves
