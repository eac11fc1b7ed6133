"""An engine by name, and its options."""

from __future__ import annotations

from typing import Any

import pytest

from grace.engines.base import load_engine, own_options
from grace.errors import ConfigError, GraceError


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("tensorrt", {}, "unknown engine .*transformers, vllm"),
        ("vllm", {"device": "cuda:1"}, "CUDA_VISIBLE_DEVICES"),
        ("transformers", {"tensor_parallel_size": 2}, "options for another engine"),
    ],
)
def test_what_an_engine_does_not_have_is_refused(
    kind: str, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        load_engine(kind, "pocket", **options)
    assert isinstance(refused.value, GraceError)


def test_a_setting_of_every_engine_is_no_option_of_one() -> None:
    assert own_options(["max_model_len=4096", "url=http://a:1"], "--engine-option") == {
        "max_model_len": 4096,
        "url": "http://a:1",
    }
    for name in ("dtype", "path", "kind"):
        with pytest.raises(ConfigError, match=f"--engine-option '{name}' is a setting of every"):
            own_options([f"{name}=float16"], "--engine-option")
