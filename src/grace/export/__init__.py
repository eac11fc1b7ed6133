"""`grace export`: write a trained model in a form that other programs load.

- `merged`: a plain Hugging Face checkpoint. `<CNF>` is a row like any other, and the generation
  config names all end tokens. Every engine loads it.
- `vllm-lora`: a LoRA for a base model that stock vLLM serves. It also changes the row of `<CNF>` in
  the output head, so the base needs a spare row there.
- `gguf`: one file for llama.cpp (see `grace.export.gguf`).
- `adapter`: the slim adapter as it was trained.

Each form comes with the tokenizer, grace.json (how c is read, the weights of the evidence, the
measured calibration), the run's threshold if one was chosen, and a model card.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, NamedTuple

from grace.cnf import find_readout
from grace.engines.gguf import resolve_model
from grace.engines.local.loading import load_tokenizer
from grace.errors import ConfigError, ModelError
from grace.export.card import write_card
from grace.export.forms import Source, write_adapter, write_merged, write_vllm_lora
from grace.export.gguf import write_gguf
from grace.progress import say
from grace.report import own_row
from grace.store import (
    CARD,
    RunDir,
    check_vacant,
    disk_watched,
    read_card,
    replace_directory,
    write_json,
)

SERVE = "grace serve {out}"
LLAMA = "llama-server -m {out}/model.gguf -ctk f32 -ctv f32, and grace proxy {out} in front"
FORMS = {  # what writes them, and what to do with them next
    "merged": (write_merged, SERVE),
    "vllm-lora": (write_vllm_lora, "see {out}/README.md for the vLLM command"),
    "gguf": (write_gguf, LLAMA),
    "adapter": (write_adapter, SERVE),
}


class Exported(NamedTuple):
    """The size of an export in bytes, and what to do with it next."""

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
    """Write a trained model to a new directory."""
    if form not in FORMS:
        raise ConfigError(f"format {form!r} is unknown; use {', '.join(FORMS)}")
    if dtype not in ("auto", "float32") and form in ("adapter", "vllm-lora"):
        raise ConfigError(
            f"format {form!r} keeps float32, so --dtype {dtype} has no effect; "
            "leave it out, or use merged or gguf"
        )
    write, hint = FORMS[form]
    check_vacant(out)
    record = read_card(adapter)
    _check_read(adapter, record)
    measured = own_row(run)
    source = Source(run, adapter, record, resolve_model(base), base, form, dtype, license_id)

    familiar = form != "adapter" and (record.get("evidence") or {}).get("familiar")
    less = familiar and familiar.get("own")  # then its confidences are not those of the adapter

    def fill(partial: Path) -> None:
        write(source, partial)
        entries: dict[str, Any] = {
            "format": form,
            "adapter_digest": source.adapter_digest,
            "measured": measured,
        }
        if form in ("merged", "gguf"):
            entries["layer"] = 0  # what c reads has been carried to the last state
        else:
            entries["base_model"] = base
        write_json(partial / CARD, record | entries)
        for chosen in (RunDir(run).threshold, RunDir(run).vote):
            if chosen.exists() and not less:
                shutil.copyfile(chosen, partial / chosen.name)
        write_card(source, measured, partial, out.name)

    with disk_watched(out):
        replace_directory(out, fill)
    if familiar:
        say(
            "fitted to several sources: this form cannot tell prompts that are unlike theirs, so "
            "ask it questions like theirs only"
        )
    if less:
        say(
            "this form leaves out the fits to each source alone: its confidence is that of the fit "
            "to all of them, so it gets no threshold and no fitted vote of the run; measure it, "
            "and choose a threshold, with answers of its own"
        )
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    return Exported(size, hint.format(out=out))


def _check_read(adapter: Path, record: dict[str, Any]) -> None:
    """Refuse an adapter whose grace.json does not say how its tokens are read."""
    bins = list(record.get("bin_tokens", {}).values())
    named = bins or record.get("read_ids") or [record.get("cnf_id")]
    if not {"rows", "read_at"} <= record.keys() or None in named:
        raise ModelError(
            f"{adapter / CARD} does not say how the adapter is read; train again: grace run"
        )
    readout = find_readout(load_tokenizer(adapter))
    if readout is None or list(readout.ids) != named:
        raise ModelError(
            f"{adapter / CARD} reads the tokens {named}, but the tokenizer beside it is another's; "
            "train again: grace run"
        )
