"""Convert models in GGUF files once into Hugging Face directories, in a cache.

transformers' own loader unpacks a file into a plain float32 directory, so the rest of GrACE never
sees GGUF. The directory is named after the digest of the file and the versions of the packages:

    ~/.cache/grace/gguf/<digest>-1-transformers-5.23.0-gguf-0.19.0/<name of the file>/

A model that is to compute in bfloat16, as on a GPU it does by default, is written as such to
`bfloat16/<name of the file>/` there, unless there is a float32 directory.

A process that holds a lock fills a partial directory, and renames it when it is complete. If that
process is killed, the next one removes the partial directory.
"""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from grace.config import is_missing
from grace.engines.gguf.header import read_header
from grace.errors import MissingError, ModelError, first_line
from grace.progress import say
from grace.store import CARD, cache_folder, digest, replace_directory
from grace.store.files import locked, writing

SUFFIX = ".gguf"
HALF = "bfloat16"
ANY = "any"  # the number format of the directory that is there, else float32
OURS = 1  # version of `unpacking`; raise it when the same file gives another directory
POCKET = Path(__file__).parents[2] / "pocket" / "model"


def resolve_model(path: str, dtype: str = ANY, device: str = "auto") -> str:
    """Return the directory of a model to load as `dtype`; a GGUF file is unpacked into one."""
    if path == "pocket":
        return str(POCKET)
    file = gguf_file(Path(path))
    if file is None and not Path(path).exists() and not is_missing(path):
        _check_hub(path)
    if file is not None and dtype == "auto":
        from grace.engines.local.loading import pick_device

        dtype = HALF if pick_device(device).type == "cuda" else "float32"
    return path if file is None else str(_unpacked(file, dtype))


@contextlib.contextmanager
def without_weights(path: str) -> Iterator[str]:
    """Yield a directory with the config and tokenizer of a model; a GGUF file is not unpacked."""
    file = None if path == "pocket" else gguf_file(Path(path))
    if file is None:
        yield resolve_model(path)
        return
    from grace.engines.gguf.unpacking import describe

    with tempfile.TemporaryDirectory() as folder:
        describe(file, read_header(file), Path(folder))
        yield folder


def _check_hub(name: str) -> None:
    """Ask the Hub once for a model that is not cached; transformers would retry for a minute."""
    import huggingface_hub

    try:
        if huggingface_hub.try_to_load_from_cache(name, "config.json") is None:
            huggingface_hub.model_info(name, timeout=10)
    except Exception as error:  # network errors, invalid names
        raise ModelError(
            f"there is no folder or run {name} here, and the Hugging Face Hub does not have it or "
            f"cannot be reached ({first_line(error)}); check the name"
        ) from error


def gguf_file(path: Path) -> Path | None:
    """Return the GGUF file at a path, or the only one in a folder; None for anything else."""
    if path.suffix.lower() == SUFFIX and not path.is_dir():
        if not path.exists():
            raise ModelError(f"{path} does not exist; give a GGUF file or a model directory")
        return path
    if not path.is_dir() or any((path / name).exists() for name in ("config.json", CARD)):
        return None
    files = sorted(file for file in path.iterdir() if file.suffix.lower() == SUFFIX)
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise ModelError(f"{path} has {len(files)} GGUF files ({names}); name one of them")
    return files[0] if files else None


def _unpacked(file: Path, dtype: str) -> Path:
    """Return the directory of a GGUF file's model, unpacking the file if there is none."""
    try:
        name = f"{digest_of(file)[:16]}-{OURS}-transformers-{_version('transformers')}-gguf-"
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {error.strerror or error}") from None
    kind, inside = (HALF, Path(HALF, file.stem)) if dtype == HALF else ("float32", Path(file.stem))
    # gguf may have been uninstalled since it unpacked the file
    places = [Path(file.stem), *([Path(HALF, file.stem)] if dtype in (HALF, ANY) else [])]
    for folder in sorted(cache_folder().glob(f"gguf/{name}{_version('gguf') or '*'}")):
        for place in (folder / place for place in places):
            if place.is_dir():
                return place
    if not _version("gguf"):
        raise MissingError(str(file), "gguf")
    header, place = read_header(file), cache_folder() / f"gguf/{name}{_version('gguf')}" / inside
    with _alone(place):
        if not place.is_dir():
            from grace.engines.gguf.unpacking import unpack

            with writing(place):
                replace_directory(place, lambda partial: unpack(file, header, partial, place, kind))
    return place


def digest_of(file: Path) -> str:
    """Return the digest of a file of weights; while it does not change it is read once."""
    is_now = file.stat()
    return _digest(file.resolve(), is_now.st_size, is_now.st_mtime_ns)


@functools.cache
def _digest(file: Path, size: int, modified_ns: int) -> str:
    return digest(file)


def _version(package: str) -> str:
    """Return the version of a package without importing it, empty if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


@contextlib.contextmanager
def _alone(place: Path) -> Iterator[None]:
    """Hold the lock of a directory; other processes wait, and then find it complete."""
    lock = place.parent / f".{place.name}.lock"
    with locked(lock) as free, contextlib.ExitStack() as waited:
        if not free:
            say(f"another process is writing {place}; waiting")
            waited.enter_context(locked(lock, wait=True))
        yield
