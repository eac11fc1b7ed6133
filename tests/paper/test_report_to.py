"""The training log elsewhere: through the trackers of Accelerate."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytestmark = pytest.mark.filterwarnings("default")


def test_tensorboard_gets_the_rows_of_the_training_log(train: Any) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    done = train(epochs=2, report_to="tensorboard")
    log = (done.adapter / "training_log.jsonl").read_text()
    rows = [json.loads(line) for line in log.splitlines()]
    events = EventAccumulator(str(done.checkpoints / "grace"))
    events.Reload()
    for name in ("loss", "eval_brier"):
        found = {event.step: event.value for event in events.Scalars(name)}
        wanted = {row["step"]: row[name] for row in rows if name in row}
        assert found == pytest.approx(wanted, rel=1e-6)
        assert len(found) >= 3


def test_what_is_logged_elsewhere_changes_nothing(train: Any) -> None:
    pytest.importorskip("tensorboard")
    weights = [
        (train(folder=kind, epochs=1, report_to=kind).adapter / "adapter_model.safetensors")
        for kind in ("none", "tensorboard")
    ]
    assert weights[0].read_bytes() == weights[1].read_bytes()
