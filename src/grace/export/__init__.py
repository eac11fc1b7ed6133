"""`grace export`: a trained model in a form that other programs load.

- `merged`: a plain Hugging Face checkpoint; `<CNF>` is a row like any other, and both ways to end
  are stop tokens of its generation config. Every engine loads it.
- `vllm-lora`: a LoRA and nothing else, for a base model that stock vLLM serves. The row of `<CNF>`
  is part of it, as a rank-1 update of the output head, so the base must have a row to spare.
- `gguf`: one file for llama.cpp, quantized on request (see `grace.export.gguf`).
- `adapter`: the slim adapter as it was trained.

All have the tokenizer with `<CNF>`, grace.json (how c is read, the weights of the evidence,
what was measured), the run's threshold if one was chosen, and a model card.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, NamedTuple

from grace.engines.gguf import gguf_file, resolve_model
from grace.errors import ConfigError, ModelError
from grace.export.card import Card, write_card
from grace.export.forms import Source, write_adapter, write_merged, write_vllm_lora
from grace.export.gguf import write_gguf
from grace.report.stored import own_row
from grace.store import (
    CARD,
    adapter_weights,
    check_vacant,
    digest,
    disk_watched,
    read_card,
    replace_directory,
    write_json,
)

FORMS = {
    "merged": write_merged,
    "vllm-lora": write_vllm_lora,
    "gguf": write_gguf,
    "adapter": write_adapter,
}
RUN_FILES = ("threshold.json",)


class Exported(NamedTuple):
    """What was written: the form, its size in bytes, and what to do with it."""

    form: str
    size: int
    hint: str


def export_model(
    run: Path,
    adapter: Path,
    base: str,
    out: Path,
    *,
    form: str = "merged",
    dtype: str = "auto",
    license_id: str | None = None,
) -> Exported:
    """Write a trained model to a new directory.

    Args:
        run: the run, for its report and threshold; an adapter directory has neither.
        adapter: the trained adapter.
        base: the backbone that it was trained on.
        out: the directory to write; it must not hold anything yet.
        form: one of `FORMS`.
        dtype: of merged weights; auto: as the base has them, in GGUF else float16.
        license_id: for the model card; None: that of the base's card.

    Raises:
        ConfigError: no such form or type, or `out` is taken.
        ModelError: the model cannot be written in this form; the message says in which it can.
    """
    if form not in FORMS:
        raise ConfigError(f"format {form!r} is unknown; use {', '.join(FORMS)}")
    check_vacant(out)
    if out.is_dir():
        out.rmdir()
    record = _record(adapter)
    measured = own_row(run)
    source = Source(adapter, resolve_model(base), record, dtype, gguf_file(Path(base)))
    card = Card(run, source.base, base, form, record, measured, license_id)

    def fill(partial: Path) -> None:
        FORMS[form](source, partial)
        made = {
            "format": form,
            "adapter_digest": digest(adapter_weights(adapter)),
            "measured": measured,
        }
        write_json(partial / CARD, record | made)
        for name in RUN_FILES:
            if (run / name).exists():
                (partial / name).write_bytes((run / name).read_bytes())
        write_card(card, partial, out)

    try:
        with disk_watched(out):
            replace_directory(out.absolute(), fill)
    finally:
        shutil.rmtree(out.absolute().with_name(f".{out.name}.partial"), ignore_errors=True)
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    return Exported(form, size, card.hint(out))


def _record(adapter: Path) -> dict[str, Any]:
    record = read_card(adapter)
    if "rows" not in record:
        raise ModelError(
            f"{adapter / CARD} does not say how the adapter is read; train again: grace run"
        )
    return record
