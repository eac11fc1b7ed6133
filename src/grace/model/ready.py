"""Ready-made heads: a confidence for a model that the package knows by its weights.

Each folder of `grace/heads` is an adapter that `bench/heads.py` fitted, without the tokenizer: the
rows, grace.json (whose entry `ready` names the file of weights, the sources and their licences, and
how good c was on sources left out) and a card. What is missing comes from the model at first use.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

from grace.engines.gguf import digest_of, gguf_file, without_weights
from grace.progress import say
from grace.store import CARD, cache_folder, read_card, replace_directory, write_json
from grace.store.files import writing

HEADS = Path(__file__).parents[1] / "heads"


def ready_head(path: Path) -> Path | None:
    """Return an adapter directory for a model without one, None if no head is for its weights."""
    found = _head_of(path)
    if found is None:
        return None
    record = read_card(found) | {"base_model": str(path.resolve())}
    name = hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:16]
    place = cache_folder() / "heads" / name / found.name
    if not place.is_dir():
        _complete(found, record, place)
    named = ", ".join(one["name"] for one in record["ready"]["sources"])
    say(f"ready head {found.name}, fitted on {named}; see {place / 'README.md'}")
    return place


def known_weights() -> str:
    """Return the names of the files of weights that there are heads for."""
    return ", ".join(ready["weights"]["file"] for _, ready in known_heads()) or "none so far"


def known_heads() -> list[tuple[Path, dict[str, Any]]]:
    """Return the folder of every head with the entry `ready` of its grace.json."""
    folders = [card.parent for card in sorted(HEADS.glob(f"*/{CARD}"))]
    return [(folder, read_card(folder)["ready"]) for folder in folders]


def _head_of(path: Path) -> Path | None:
    """Return the head for the weights at a path; only weights of a known size are read."""
    file = gguf_file(path) or path / "model.safetensors"
    if not file.is_file():
        return None
    size = file.stat().st_size
    for head, ready in known_heads():
        weights = ready["weights"]
        if weights["bytes"] == size and weights["sha256"] == digest_of(file):
            return head
    return None


def _complete(head: Path, record: dict[str, Any], place: Path) -> None:
    """Write the adapter directory of a head, with the model's own tokenizer."""
    from grace.cnf import name_readout
    from grace.engines.local.loading import load_tokenizer

    with without_weights(record["base_model"]) as weightless:
        tokenizer, _ = name_readout(load_tokenizer(weightless), "linear")

    def fill(partial: Path) -> None:
        shutil.copytree(head, partial, dirs_exist_ok=True)
        tokenizer.save_pretrained(partial)
        write_json(partial / CARD, record)

    with writing(place):
        replace_directory(place, fill)
