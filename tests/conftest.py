"""One thread, no network, and one copy of each tiny model and tokenizer."""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["GRACE_TRUST"] = "tiny_run,trials"  # whose graders the runs of the tests name

import functools
import gc
import ssl
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import made_up_figures

# Each HTTP client would read the certificates of all authorities, which takes longer than a request
# on the loopback, where there are none.
ssl.create_default_context = functools.cache(ssl.create_default_context)
os.fsync = lambda _: None  # no test cuts the power, and a disk takes half of the time of a tiny run


gc.disable()  # until all is imported


def pytest_collection_finish() -> None:
    """Look for garbage seldom, and never among all that the imports have made."""
    gc.freeze()
    gc.set_threshold(50_000)
    gc.enable()


@functools.cache
def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    if "torch" in sys.modules:
        _one_thread()


@pytest.fixture(autouse=True)
def no_second_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not ask a server again which model it has, in tests that count its requests."""
    if remote := sys.modules.get("grace.engines.http.remote"):
        monkeypatch.setattr(remote, "CHECK_S", 1e9)


@pytest.fixture(scope="module", autouse=True)
def figures() -> Iterator[None]:
    """Draw no figures; where they are what is tested, a fixture of this name does nothing."""
    with made_up_figures.made_up():
        yield


@pytest.fixture
def tokenizer() -> Any:
    """A fresh tiny tokenizer with a ChatML template."""
    _one_thread()
    import tiny_models

    return tiny_models.tokenizer()


@pytest.fixture
def tiny(request: pytest.FixtureRequest) -> Any:
    """A fresh (model, tokenizer) pair of the architecture named by the parameter."""
    _one_thread()
    import tiny_models

    name = getattr(request, "param", "llama_untied")
    return tiny_models.model(name), tiny_models.tokenizer()


@pytest.fixture
def tiny_dir(tiny: Any, tmp_path: Path) -> Path:
    """A model directory with a tiny model and its tokenizer."""
    model, tokenizer = tiny
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny `model`, `questions.jsonl` and a finished `run`; leave it as it is."""
    import tiny_run

    _one_thread()
    with warnings.catch_warnings(action="ignore"), made_up_figures.drawn():
        return tiny_run.finished(tmp_path_factory.mktemp("finished"))


@pytest.fixture
def shared() -> Path:
    """The folder of real tokenizers, backbones and data of a development checkout."""
    default = Path(__file__).parents[2] / "shared"
    folder = Path(os.environ.get("GRACE_SHARED", default))
    if not (folder / "tokenizers").is_dir():
        pytest.skip(f"no {folder}/tokenizers: set GRACE_SHARED to the folder with real tokenizers")
    return folder
