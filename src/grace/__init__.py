"""GrACE: how sure is this LLM of this answer, and how many samples do I still need?

The names below are the public API; each is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grace.errors import GraceError as GraceError
    from grace.measuring import measure as measure
    from grace.model import Model as Model
    from grace.model import Reply as Reply
    from grace.model import load as load
    from grace.pipeline.study import run as run
    from grace.records import Decision as Decision
    from grace.records import Vote as Vote
    from grace.strategies import EarlyStop as EarlyStop
    from grace.strategies import Majority as Majority
    from grace.strategies import Weighted as Weighted

_HOME = {
    "Decision": "grace.records",
    "EarlyStop": "grace.strategies",
    "GraceError": "grace.errors",
    "Majority": "grace.strategies",
    "Model": "grace.model",
    "Reply": "grace.model",
    "Vote": "grace.records",
    "Weighted": "grace.strategies",
    "load": "grace.model",
    "measure": "grace.measuring",
    "run": "grace.pipeline.study",
}

__all__ = sorted(_HOME)
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'grace' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
