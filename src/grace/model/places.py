"""What a path means to `load`: a run, an adapter, or a whole model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grace import plugins
from grace.errors import ModelError
from grace.records import Question, from_json
from grace.store import CARD, LORA_CONFIG, ROWS, is_run, read_json, runs_in


def adapter_folder(path: Path, adapter: Path | None) -> Path | None:
    """Return the adapter directory that `path` and `adapter` mean, None for a whole model."""
    if adapter is not None:
        return adapter
    if is_run(path):
        if not (path / "adapter" / CARD).exists():
            raise ModelError(f"run {path} has no trained adapter yet; finish it: grace run {path}")
        return path / "adapter"
    if runs := runs_in(path):
        names = ", ".join(run.name for run in runs)
        raise ModelError(f"{path} holds several runs ({names}); name one of them, e.g. {runs[0]}")
    return path if any((path / name).exists() for name in (LORA_CONFIG, ROWS)) else None


def recorded_base(folder: Path, card: dict[str, Any]) -> str:
    """Return the backbone that an adapter was trained on, where it was then."""
    if "base_model" not in card:
        raise ModelError(
            f"{folder} has no grace.json that names its backbone, so GrACE did not train it; "
            "name a run, or train one: grace run"
        )
    model = str(card["base_model"])
    if Path(model).is_absolute() and not Path(model).exists():
        raise ModelError(
            f"the backbone of {folder} was at {model} and is gone; say where it is now: "
            "--base DIR, or base= in Python"
        )
    return model


def recorded_shots(card: dict[str, Any]) -> tuple[Question, ...]:
    """Return the examples that go before every question, from grace.json."""
    try:
        return tuple(from_json(Question, shot) for shot in card.get("shots", ()))
    except (TypeError, AttributeError) as error:
        raise ModelError(
            f"grace.json has shots that are no questions ({error}); restore it, or train again"
        ) from None


def read_card(folder: Path) -> dict[str, Any]:
    """Return the grace.json of a directory, empty if it has none."""
    card = folder / CARD
    value = read_json(card) if card.exists() else {}
    if not isinstance(value, dict):
        raise ModelError(f"{card} is not an object; restore it, or train again")
    return value


def code_in(card: dict[str, Any]) -> list[str]:
    """Return the modules that a grace.json names (see `plugins.refuse_code`)."""
    data = card.get("data")
    return plugins.code_in([str(data.get("task", ""))] if isinstance(data, dict) else [])
