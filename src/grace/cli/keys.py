"""Keys that users give: as an option, in the environment, or in a file."""

from __future__ import annotations

from pathlib import Path

from grace.errors import ConfigError


def read_key(given: str, file: Path | None = None) -> str:
    """Return a key without the space around it, empty where none is given.

    Args:
        given: what an option or the environment holds.
        file: a file that holds nothing but the key.

    Raises:
        ConfigError: both are given, the file cannot be read, or there is nothing but space.
    """
    if file is None:
        if given and not given.strip():
            raise ConfigError("the key is nothing but space; leave it out, or give one")
        return given.strip()
    if given:
        raise ConfigError(
            "a key is given and a file with one (GRACE_API_KEY counts as --api-key); give one"
        )
    try:
        key = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise ConfigError(f"the key in {file} cannot be read: {reason}") from None
    if not key:
        raise ConfigError(f"{file} holds no key; write one into it")
    return key
