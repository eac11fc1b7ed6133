"""The embedded default: a small synthetic world and a small decoder that read about it.

`world` makes the questions, and `model/` holds the decoder, which loads with
`AutoModelForCausalLM.from_pretrained`. What wrote its text and trained it is not in the package but
beside it, in `tools/pocket`. Nothing heavy is imported here.
"""

from pathlib import Path

MODEL_DIR: Path = Path(__file__).parent / "model"
"""Folder of the shipped checkpoint (Hugging Face layout)."""

TASKS: tuple[str, ...] = ("pocket_people", "pocket_places", "pocket_sums", "pocket_rules")
"""Two closed-book question sets, then two multiple-choice sets answered step by step."""

SPLITS: dict[str, int] = {"train": 2000, "validation": 500, "test": 1000}
"""Number of questions in each split of every task."""

__all__ = ["MODEL_DIR", "SPLITS", "TASKS"]
