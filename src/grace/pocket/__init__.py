"""The embedded default: a small decoder, and questions about the synthetic world it read about.

`model/` loads with `AutoModelForCausalLM.from_pretrained`; `questions/` are those of the four
pocket tasks. What made both is not in the package but beside it, in `tools/pocket`.
"""

from pathlib import Path

MODEL_DIR: Path = Path(__file__).parent / "model"
"""Folder of the shipped checkpoint (Hugging Face layout)."""

QUESTIONS: Path = Path(__file__).parent / "questions"
"""By task a folder with train.parquet, validation.parquet and test.parquet."""

__all__ = ["MODEL_DIR", "QUESTIONS"]
