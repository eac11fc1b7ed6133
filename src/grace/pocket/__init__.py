"""The small model that comes with GrACE, and questions about its synthetic world.

`model/` loads with `AutoModelForCausalLM.from_pretrained`; `questions/` holds those of the four
pocket tasks. `tools/pocket` in the repository builds both.
"""

from pathlib import Path

MODEL_DIR: Path = Path(__file__).parent / "model"
"""Folder of the shipped checkpoint (Hugging Face layout)."""

QUESTIONS: Path = Path(__file__).parent / "questions"
"""Folder with train.parquet, validation.parquet and test.parquet of each task."""

__all__ = ["MODEL_DIR", "QUESTIONS"]
