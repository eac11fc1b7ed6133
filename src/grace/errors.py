"""The errors that GrACE raises on purpose.

```
GraceError                 exit code 2 in the command line, printed as one line
├── UserInputError         a file, a line, an option or a name that cannot be used
│   ├── ConfigError        an unknown or invalid setting
│   │   └── MissingError   a package that only some uses need is not installed
│   └── DataError          a question file or a response file that cannot be read
├── ModelError             a model or tokenizer directory that cannot serve
│   └── ComputeError       memory ran out, or what was computed is no number
├── UpstreamError          a request to a server that failed (in `engines/http/upstream.py`)
├── RunError               a run directory that does not fit the command
└── TrainingError          training had to stop (loss not finite, nothing to train on)
```

A message says what happened, the value, and what to do next, in one line.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

LOCAL = {
    "torch": "PyTorch",
    "transformers": "Transformers",
    "peft": "PEFT",
    "accelerate": "Accelerate",
    "datasets": "Datasets",
    "pyarrow": "PyArrow",
    "scipy": "SciPy",
    "sklearn": "scikit-learn",
    "threadpoolctl": "threadpoolctl",
    "matplotlib": "Matplotlib",
    "gguf": "gguf",
}
"""Names of the packages of the extra `local`, by module; they run, fit, train and export models."""


class GraceError(Exception):
    """Base of every error that GrACE raises on purpose."""


class UserInputError(GraceError):
    """Something that the user typed or wrote into a file cannot be used."""


class ConfigError(UserInputError):
    """A setting is unknown or has an impossible value."""


class MissingError(ConfigError):
    """A package of an extra is not installed."""

    def __init__(self, what: str, package: str, extra: str = "local") -> None:
        super().__init__(
            f"{what} needs {LOCAL.get(package, package)}, which is not installed: "
            f"pip install 'grace-confidence[{extra}]'"
        )


@contextlib.contextmanager
def packages_for(what: str) -> Iterator[None]:
    """Turn the failed import of a package of the extra `local` into a `MissingError`."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in LOCAL:
            raise
        raise MissingError(what, package) from error


class DataError(UserInputError):
    """A file of questions or responses cannot be read."""


class ModelError(GraceError):
    """A model or tokenizer directory lacks something that GrACE needs."""


class ComputeError(ModelError):
    """A model cannot compute this: memory ran out, or the values are no numbers."""


class RunError(GraceError):
    """A run directory does not fit the command."""


class TrainingError(GraceError):
    """Training had to stop; the last good checkpoint is kept."""


def first_line(error: Exception | str) -> str:
    """Return the first line of an error's message, or its type if it has none."""
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__
