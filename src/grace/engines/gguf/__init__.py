"""Models in GGUF files: unpacked once, by transformers' own loader, into a cache.

What comes out is a plain float32 Hugging Face directory, so everything else in GrACE knows nothing
of GGUF. Its place is named after the digest of the file and the versions of what unpacked it:

    ~/.cache/grace/gguf/<digest>-1-transformers-5.23.0-gguf-0.19.0/<name of the file>/

The directory is renamed into its place when it is whole, by a process that holds a lock; a kill
leaves a partial one beside it, which the next process removes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from grace.config import is_missing
from grace.errors import MissingError, ModelError
from grace.store import CARD, digest
from grace.store.files import sync, writing

SUFFIX = ".gguf"
OURS = 1  # to be raised when `unpacking` makes something else of the same file
POCKET = Path(__file__).parents[2] / "pocket" / "model"


def resolve_model(path: str) -> str:
    """Return the directory behind what a user calls a model, unpacking a GGUF file if need be.

    Args:
        path: the built-in name `pocket`, a GGUF file, a folder with one, or anything else (a
            model directory, an export, a Hub id), which is returned as it is.

    Raises:
        ModelError: a GGUF file that is missing, damaged, or not supported; no model of the Hub.
        MissingError: the package that reads GGUF is not installed.
    """
    if path == "pocket":
        return str(POCKET)
    file = gguf_file(Path(path))
    if file is None and not Path(path).exists() and not is_missing(path):
        _check_hub(path)
    return path if file is None else str(_unpacked(file))


def _check_hub(name: str) -> None:
    """Ask the Hub once for a model that is not cached; transformers would ask for a minute."""
    import huggingface_hub

    try:
        if huggingface_hub.try_to_load_from_cache(name, "config.json") is None:
            huggingface_hub.model_info(name, timeout=10)
    except Exception as error:  # of the network, or a name that is none
        raise ModelError(
            f"there is no folder or run {name} here, and the Hugging Face Hub does not have it or "
            f"cannot be reached ({str(error).partition(chr(10))[0]}); check the name"
        ) from error


def gguf_file(path: Path) -> Path | None:
    """Return the GGUF file that a path means, None where it means anything else.

    Raises:
        ModelError: it does not exist, or the folder has several.
    """
    if path.suffix.lower() == SUFFIX and not path.is_dir():
        if not path.exists():
            raise ModelError(f"{path} does not exist; give a GGUF file or a model directory")
        return path
    if not path.is_dir() or any((path / name).exists() for name in ("config.json", CARD)):
        return None
    files = sorted(file for file in path.iterdir() if file.suffix.lower() == SUFFIX)
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise ModelError(f"{path} holds {len(files)} GGUF files ({names}); name one of them")
    return files[0] if files else None


def _unpacked(file: Path) -> Path:
    """Return the directory of a GGUF file's model, which is made if it is not there."""
    try:
        name = f"{digest(file)[:16]}-{OURS}-transformers-{_version('transformers')}-gguf-"
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {error.strerror or error}") from None
    place = cache_folder() / f"{name}{_version('gguf')}" / file.stem
    if place.is_dir():
        return place
    if not _version("gguf"):  # gone since it unpacked the file, perhaps
        for folder in sorted(cache_folder().glob(f"{name}*")):
            if (folder / file.stem).is_dir():
                return folder / file.stem
        raise MissingError(str(file), "gguf")
    _make(file, place)
    return place


def _make(file: Path, place: Path) -> None:
    from grace.engines.gguf.header import read_header

    header = read_header(file)
    with _alone(place):
        if place.is_dir():
            return
        from grace.engines.gguf.unpacking import unpack

        with _replacing(place) as partial:
            unpack(file, header, partial, place)


def _version(package: str) -> str:
    """Return the version of a package without importing it, nothing if it is not there."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def cache_folder() -> Path:
    """Return the user's cache folder for models of GGUF files (`XDG_CACHE_HOME`, ~/.cache)."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))  # the standard: ignored if not absolute
    return (named if named.is_absolute() else Path.home() / ".cache") / "grace" / "gguf"


@contextlib.contextmanager
def _alone(place: Path) -> Iterator[None]:
    """Keep other processes from making the same directory; they wait, then find it."""
    with writing(place):
        lock = (place.parent / f".{place.name}.lock").open("a")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            print(f"{place} is being made by another process; waiting", file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _replacing(place: Path) -> Iterator[Path]:
    """Yield a directory to fill, which then gets its name in one step, or is removed."""
    partial = place.with_name(f".{place.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        with writing(place):
            partial.mkdir()
            yield partial
            for file in partial.iterdir():
                sync(file)
            partial.rename(place)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
