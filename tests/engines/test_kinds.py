"""An engine by name, and what the facade does with vLLM behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fake_vllm
import vllm_models
from grace.engines.base import load_engine, own_options
from grace.errors import ConfigError, GraceError

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return vllm_models.write_trained(tmp_path_factory.mktemp("trained"), tied=False)


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The engines of a fake vLLM that loads merged exports with transformers."""
    made: list[Any] = []

    def start(model: str, **options: Any) -> Any:
        made.append(fake_vllm.load(model, **options))
        return made[-1]

    fake_vllm.install(monkeypatch, make=start)
    return made


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
