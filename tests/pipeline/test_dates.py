"""A chat template that prints today's date: one date for good, whoever renders it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

import tiny_models
import tiny_run
from grace import chat
from grace.chat import answering_at_once, frozen_date, with_date, with_thinking
from grace.chat.saved import SavedTokenizer
from grace.config import override_settings
from grace.engines.local import loading
from grace.engines.local.loading import load_tokenizer
from grace.errors import ConfigError
from grace.pipeline import run
from grace.pipeline.labelling import Labelling, label
from grace.store import read_json

TURNS = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
)
BEGIN = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
DATES = {  # as model families write it, and what is printed on 2026-11-05
    "always": (
        "{%- set date_string = strftime_now('%d %b %Y') -%}{{ date_string }}",
        "05 Nov 2026",
    ),
    "if not given": (
        "{% if not date_string is defined %}{% if strftime_now is defined %}"
        '{% set date_string = strftime_now("%d %B %Y") %}{% else %}'
        '{% set date_string = "26 Jul 2024" %}{% endif %}{% endif %}{{ date_string }}',
        "05 November 2026",
    ),
    "in a macro": (
        "{% macro head() %}{{ strftime_now('%A, %Y-%m-%d') }}{% endmacro %}{{ head() }}",
        "Thursday, 2026-11-05",
    ),
    "in a loop": (
        "{% for m in messages[:1] %}{% if m %}{{ strftime_now(format='%-d.%-m.%y') }}"
        "{% endif %}{% endfor %}",
        "5.11.26",
    ),
    "with the time": ("{{- strftime_now('%Y-%m-%d %H:%M') -}}", "2026-11-05 00:00"),
    "in a format of its own": ("{% set f = '%B %Y' %}{{ strftime_now(f) }}", "November 2026"),
}
CHAT: list[Any] = [{"role": "user", "content": "Who is {# she #}?"}]


def on(day: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "today", lambda: day)
    loading._say_frozen.cache_clear()


@pytest.mark.parametrize("name", DATES)
def test_a_date_is_printed_as_it_was_on_the_day_by_transformers_too(
    name: str, tmp_path: Path
) -> None:
    head, printed = DATES[name]
    tokenizer = tiny_models.tokenizer(chat_template=with_date(head + TURNS + BEGIN, "2026-11-05"))
    expected = f"{printed}<|im_start|>user\nWho is {{# she #}}?<|im_end|>\n<|im_start|>assistant\n"
    how: Any = {"tokenize": False, "add_generation_prompt": True}
    assert tokenizer.apply_chat_template(CHAT, **how) == expected
    tokenizer.save_pretrained(tmp_path)
    assert SavedTokenizer(tmp_path).apply_chat_template(CHAT, **how) == expected
    template = tokenizer.chat_template
    assert with_date(template, "2027-01-01") == template and frozen_date(template) == "2026-11-05"


def test_templates_without_a_date_stay_as_they_are_and_switches_still_work() -> None:
    assert with_date(tiny_models.CHATML) == tiny_models.CHATML
    assert frozen_date(tiny_models.CHATML) == frozen_date(None) == ""
    thinks = "{{ strftime_now('%Y') }}{% if enable_thinking %}think{% endif %}"
    tokenizer = tiny_models.tokenizer(
        chat_template=with_thinking(with_date(thinks, "2026-11-05"), True)
    )
    how: Any = {"tokenize": False}
    assert tokenizer.apply_chat_template(CHAT, **how) == "2026think"
    assert answering_at_once(tokenizer).apply_chat_template(CHAT, **how) == "2026"
    with pytest.raises(ConfigError, match=r"model\.date is 'May'; write a day such as 2026-11-26"):
        with_date(thinks, "May")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dates")
    template = DATES["if not given"][0] + TURNS + BEGIN
    tiny_run.write_model(folder / "model", chat_template=template)
    tiny_run.write_questions(folder / "questions.jsonl")
    return folder


def test_a_run_over_several_days_has_the_date_of_its_first_stage(
    inputs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    where = (f"model.path={inputs / 'model'}", "data.task=jsonl")
    file = f"data.file={inputs / 'questions.jsonl'}"
    given = override_settings({}, [*where, file, *tiny_run.FAST])
    on("2026-11-05", monkeypatch)
    run(tmp_path / "once", given, until="answer")
    assert capsys.readouterr().err.count("prints the date, which is kept at 2026-11-05") == 1
    run(tmp_path / "often", given, until="grade")
    on("2026-12-24", monkeypatch)
    run(tmp_path / "often", given, until="answer")
    assert read_json(tmp_path / "often/train/asking.json")["date"] == "2026-11-05"
    for name in ("adapter/chat_template.jinja", "adapter/grace.json", "test/tuned/responses.jsonl"):
        once, often = ((tmp_path / part / name).read_bytes() for part in ("once", "often"))
        assert once == often
    assert frozen_date(load_tokenizer(tmp_path / "often/adapter").chat_template) == "2026-11-05"
    run(tmp_path / "often", given, redo="sample", until="sample")
    assert read_json(tmp_path / "often/train/asking.json")["date"] == "2026-12-24"


def test_labels_of_several_days_are_asked_with_the_date_of_the_first(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = {"model": {"path": str(inputs / "model")}, "sample": {"max_new_tokens": 4}}
    given = override_settings(tree, ["data.task=jsonl", "data.prompt=short"])
    how = Labelling(given, shard_size=20)
    for day, out in (("2026-11-05", "once"), ("2026-11-05", "often")):
        on(day, monkeypatch)
        label(inputs / "questions.jsonl", tmp_path / out, how)
    (tmp_path / "often/part-00001.parquet").unlink()
    on("2026-12-24", monkeypatch)
    label(inputs / "questions.jsonl", tmp_path / "often", how)
    once, often = (
        parquet.read_table(tmp_path / out / "part-00001.parquet") for out in ("once", "often")
    )
    assert once.equals(often)
    assert read_json(tmp_path / "often/_label.json")["date"] == "2026-11-05"
