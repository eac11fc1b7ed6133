"""A model of the Hub that is not there is told at once, not after a minute of retries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from grace.engines.gguf import resolve_model
from grace.errors import ModelError


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is asked of a Hub that cannot be reached."""
    asked: list[str] = []

    def model_info(name: str, **options: Any) -> None:
        asked.append(name)
        raise ConnectionError("Name or service not known")

    monkeypatch.setattr(huggingface_hub, "model_info", model_info)
    return asked


def test_the_hub_is_asked_once_for_a_name_that_is_not_cached(hub: list[str]) -> None:
    with pytest.raises(ModelError) as caught:
        resolve_model("me/no-such-model")
    assert str(caught.value) == (
        "there is no folder or run me/no-such-model here, and the Hugging Face Hub does not have "
        "it or cannot be reached (Name or service not known); check the name"
    )
    assert hub == ["me/no-such-model"]


def test_the_hub_is_not_asked_for_what_is_here_or_cached(
    hub: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert resolve_model(str(tmp_path)) == str(tmp_path)
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *name: "config.json")
    assert resolve_model("me/model") == "me/model"
    assert hub == []
