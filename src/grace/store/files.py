"""Atomic writes of files and directories, and one-line errors for a failing disk."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from grace.errors import ConfigError, GraceError, RunError

# Messages of safetensors and torch (three kinds) about a full disk; none is an OSError with errno.
FULL_DISK = ("No space left on device", "PytorchStreamWriter", "inline_container", "iostream error")


def cache_folder() -> Path:
    """Return the folder for what can be made again, in `XDG_CACHE_HOME` or ~/.cache."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))  # to be ignored if relative, says XDG
    return (named if named.is_absolute() else Path.home() / ".cache") / "grace"


def digest(path: Path) -> str:
    """Return the SHA-256 of a file as hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_json(path: Path) -> Any:
    """Return a JSON file's content."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path} cannot be read ({error}); restore it or start a new run") from None


def write_json(path: Path, value: Any) -> None:
    """Write JSON so that a reader sees either the old file or the whole new one."""
    write_bytes(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees either the old file or the whole new one."""
    partial = path.with_name(path.name + ".partial")
    with writing(path):
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)


def copy_file(source: Path, target: Path) -> None:
    """Copy a file so that a reader sees the whole copy or none."""
    partial = target.with_name(target.name + ".copying")
    with writing(target):
        shutil.copyfile(source, partial)
        partial.rename(target)


def check_vacant(directory: Path) -> None:
    """Refuse a path that is in use or cannot be written, before work is spent on it."""
    if directory.resolve() == Path.cwd():  # it is put in place with a rename, as a new directory
        raise ConfigError(f"{directory} is the working directory; name a new one in it")
    if directory.exists() and not directory.is_dir():  # a file, or a device such as /dev/stdout
        raise ConfigError(f"{directory} exists already; name a new one")
    if directory.is_dir() and any(directory.iterdir()):
        raise ConfigError(f"{directory} is not empty; name a new directory")
    folder = existing(directory.parent)
    with writing(folder / directory.name):
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def existing(folder: Path) -> Path:
    """Return the folder, or the nearest above it that exists."""
    return next(one for one in (folder, *folder.absolute().parents) if one.exists())


def replace_directory(directory: Path, fill: Callable[[Path], None]) -> None:
    """Fill a new directory and put it in place with one rename; a link to one stays."""
    directory = directory.resolve()
    partial = directory.with_name(f".{directory.name}.partial")
    old = directory.with_name(f".{directory.name}.old")
    for leftover in (partial, old):
        shutil.rmtree(leftover, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        fill(partial)
        for file in partial.rglob("*"):
            if file.is_file():
                file.chmod(partial.stat().st_mode & 0o666)
                sync(file)
        if directory.exists():
            directory.rename(old)
        partial.rename(directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)


def sync(path: Path) -> None:
    """Wait until a file is on disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


@contextlib.contextmanager
def locked(path: Path, *, wait: bool = False) -> Iterator[bool]:
    """Hold a file for this process; yield False if another one holds it."""
    with writing(path):
        file = path.open("a")
    with file:
        ours = True
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            ours = False
        except OSError as error:
            raise RunError(
                f"{path.parent} cannot be locked ({error.strerror}); use a directory on another "
                "file system, or one that is mounted with locks"
            ) from None
        yield ours


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Make the parent folder, and turn a failing disk into a one-line `RunError`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with disk_watched(path):
            yield
    except OSError as error:
        raise RunError(
            f"cannot write {path}: {error.strerror or error}; check its folder and the rights to "
            "it, or use another directory"
        ) from error


@contextlib.contextmanager
def disk_watched(path: Path) -> Iterator[None]:
    """Turn the error that any library raises on a full disk into a one-line `RunError`."""
    try:
        yield
    except Exception as error:
        if isinstance(error, GraceError) or not _is_full(error):
            raise
        raise RunError(
            f"the disk is full while writing {path}; free some space and run the same command "
            "again, it resumes where it stopped"
        ) from error


def _is_full(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        if any(words in str(error) for words in FULL_DISK):
            return True
        error = error.__cause__ or error.__context__
    return False
