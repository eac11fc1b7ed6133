"""The model card of an export: what the model is, how c is read, what was measured, the limits."""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path
from typing import Any

import jinja2

from grace.answers import lettered
from grace.chat import encode_chat
from grace.config import DataSettings, SampleSettings, from_dict
from grace.engines.local.loading import load_tokenizer
from grace.engines.reading import LISTED_ENDS, named_ends
from grace.engines.vllm import max_lora_rank
from grace.errors import RunError
from grace.evidence import FEATURES, Evidence
from grace.export.forms import Source
from grace.methods.card import task_in
from grace.records import Question
from grace.report import from_json, own_diagram
from grace.report.markdown import markdown_table
from grace.report.names import MAIN
from grace.report.rows import MetricRow
from grace.report.tables import measured_in
from grace.store import LORA_CONFIG, ROWS
from grace.tasks import load_task
from grace.tasks.prompts import conversation, recorded_shots

DIAGRAM = "reliability.png"
# Entries of grace.json that only some models have.
OPTIONAL: dict[str, Any] = {"bin_tokens": {}, "evidence": None, "recalibrated": [], "stop_ids": []}


def write_card(source: Source, measured: dict[str, Any] | None, directory: Path, name: str) -> None:
    """Write README.md, and beside it the run's reliability diagram if there is one."""
    record, task = source.record, task_in(source.record)
    diagram = own_diagram(source.run, task)
    if diagram is not None:
        shutil.copyfile(diagram, directory / DIAGRAM)
    text = TEMPLATES.get_template("card.md.j2").render(
        form=source.form,
        record=OPTIONAL | record,
        task=task,
        base=Path(source.base_name).name.removesuffix(".gguf"),
        base_name=source.base_name,
        base_path=source.base,
        base_on_hub=not Path(source.base).exists(),
        license_id=source.license_id or _license_of(source.base),
        is_peft=(directory / LORA_CONFIG).is_file(),
        rows_alone=(source.adapter / ROWS).is_file(),
        max_rank=max_lora_rank(directory) if source.form == "vllm-lora" else None,
        name=name,
        diagram=DIAGRAM if diagram is not None else None,
        measured=measured,
        table=_table(measured) if measured else "",
        **_without_grace(source, directory),
    )
    (directory / "README.md").write_text(text, encoding="utf-8")


def _without_grace(source: Source, directory: Path) -> dict[str, Any]:
    """Return what the card needs to say how c is computed without this package."""
    record = source.record
    inside = bool(record.get("layer")) and source.form == "adapter"
    if "cnf_id" not in record or record["read_at"] == "feed" or inside:
        return {"one_request": False, "asks": False, "prompt": "", "code": ""}
    prompt = prompt_of(record, directory)
    asks = bool(prompt) and source.form in ("merged", "vllm-lora")
    code = snippet(record, directory, prompt, asks=asks)
    return {"one_request": True, "asks": asks, "prompt": prompt, "code": code}


def _table(measured: dict[str, Any]) -> str:
    """Return the main metrics with their intervals and meanings, as a table in Markdown."""
    try:
        row = from_json(MetricRow, measured)
    except TypeError as error:
        raise RunError(
            f"the report's row about this model cannot be read ({error}); make the report again: "
            "--redo report"
        ) from None
    heads = ("metric", "value (%)", "meaning")
    cells = [measured_in(row, c) for c in MAIN]
    rows = [[c.heading, cell.plain, c.meaning] for c, cell in zip(MAIN, cells, strict=True)]
    return "\n".join(markdown_table(heads, rows)).strip()


def _license_of(base: str) -> str | list[str]:
    """Return the licence in the base's own card, or its licences; `other` if there is none here."""
    from huggingface_hub.repocard import metadata_load

    card = Path(base) / "README.md"
    try:
        head = metadata_load(card) if card.is_file() else None
    except Exception:  # text that is no YAML, in anyone's card
        head = None
    named = (head or {}).get("license")
    listed = isinstance(named, list) and all(isinstance(one, str) for one in named)
    return named if named and (listed or isinstance(named, str)) else "other"


# --- Python code for the card, which computes c without this package

# The code defines `confidence`, the formula for c with the model's own numbers. For vLLM it also
# defines `ask`, which sends a question with the prompt of the training run and returns the answer
# with its c. The tests run the code as it stands.

# A literal of Python, JSON and YAML; escaped, a character such as an emoji would be two in Python.
quoted = functools.partial(json.dumps, ensure_ascii=False)
TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
TEMPLATES.filters["quoted"] = quoted
QUESTION = "Which river did Quanto Belliver cross?"
OPTIONS = ("the Sall", "the Orm")
UNBOUNDED = 1e9  # for evidence without a range to which features are clipped


def snippet(record: dict[str, Any], directory: Path, prompt: str, *, asks: bool) -> str:
    """Return the code that computes c and, if it `asks`, the code that asks vLLM."""
    evidence = Evidence.in_card(record)
    read = record.get("read_ids", [record["cnf_id"]])
    stops = list(dict.fromkeys([*named_ends(directory), *record.get("stop_ids", ())]))
    ends = [token for token in stops if token not in read]
    sample = from_dict(SampleSettings, record.get("sample", {}))
    return TEMPLATES.get_template("snippet.py.j2").render(
        asks=asks,
        kind="linear" if len(read) > 1 else "token" if evidence else "plain",
        at_prompt=record["read_at"] == "prompt",
        prompt=prompt,
        read=read,
        stops=stops,
        ends=ends[:LISTED_ENDS],
        evidence=evidence,
        lowest=[-UNBOUNDED] * len(FEATURES),
        highest=[UNBOUNDED] * len(FEATURES),
        longest=sample.longest,
        cut="".join(f".partition({quoted(stop)})[0]" for stop in sample.stop),
    )


def prompt_of(record: dict[str, Any], directory: Path) -> str:
    """Return the prompt of the training run as text, with `{question}` and `{options}` in it.

    It is "" if the task is not built in, if the prompt itself says one of these, or if the
    tokenizer does not turn its text back into the same tokens.
    """
    data = from_dict(DataSettings, record.get("data", {}))
    if not data.task or ":" in data.task:
        return ""
    task = load_task(data.task, record.get("kind", ""))
    tokenizer = load_tokenizer(directory)
    choices = OPTIONS if task.kind == "choice" else ()
    question = Question("0", task.name, QUESTION, (), choices)
    ids = encode_chat(tokenizer, conversation(task, question, data, recorded_shots(record)))
    text: str = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    has_fields = any(field in text for field in ("{question}", "{options}"))  # of its own
    if has_fields or tokenizer(text, add_special_tokens=False)["input_ids"] != ids:
        return ""
    text = text.replace(QUESTION, "{question}")
    return text.replace("\n".join(lettered(choices)), "{options}") if choices else text
