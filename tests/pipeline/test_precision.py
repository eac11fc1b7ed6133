"""A whole run in half precision: what is loaded for training differs from what answers."""

from __future__ import annotations

from pathlib import Path

import tiny_run
from grace.config import override_settings
from grace.pipeline import run


def test_a_half_precision_run_ends_and_its_engine_reads_what_was_trained(tmp_path: Path) -> None:
    model = tiny_run.write_model(tmp_path / "model")
    file = tiny_run.write_questions(tmp_path / "questions.jsonl")
    where = (f"model.path={model}", "data.task=jsonl", f"data.file={file}", "model.dtype=bfloat16")
    report = run(tmp_path / "run", override_settings({}, [*where, *tiny_run.FAST]))
    assert {row["estimator"] for row in report["rows"]} == {
        "grace",
        "grace@base",
        "likelihood",
        "platt",
        "loglik",
        "deepconf_logistic",
    }
    log = (tmp_path / "run" / "adapter" / "training_log.jsonl").read_text("utf-8")
    assert "nan" not in log.lower()
