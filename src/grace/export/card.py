"""The model card of an export: what the model is, how c is read, what was measured, the limits."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from grace.engines.vllm_loading import max_lora_rank
from grace.errors import RunError
from grace.export.forms import Source
from grace.export.snippets import TEMPLATES, prompt_of, snippet
from grace.methods.card import task_in
from grace.report import from_json
from grace.report.markdown import markdown_table
from grace.report.names import MAIN
from grace.report.rows import MetricRow
from grace.report.stored import own_diagram
from grace.report.tables import measured_in
from grace.store import LORA_CONFIG, ROWS

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
