"""Limits and address of a server."""

from __future__ import annotations

from dataclasses import dataclass

from grace.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Limits of a server; a request beyond one of them is refused, never cut down.

    Attributes:
        name: what clients call the model.
        api_key: what clients must send as `Authorization: Bearer KEY`; empty: nothing.
        max_tokens: most tokens of one answer.
        hosts: by which names the server may be called, besides addresses and `localhost`.
        max_waiting: requests that wait for the model; further ones get 429.
        max_running: requests at a time that are relayed to a server upstream.
        timeout_s: longest time from a request's arrival to its last byte.
    """

    name: str = "grace"
    api_key: str = ""
    max_tokens: int = 4096
    hosts: tuple[str, ...] = ()
    max_waiting: int = 64
    max_running: int = 256
    timeout_s: float = 300.0

    def __post_init__(self) -> None:
        for name in (name for name in self.__slots__ if name.startswith("max_")):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; allow at least 1")
        if not self.timeout_s > 0:
            raise ConfigError(f"timeout_s is {self.timeout_s}; allow some seconds")
        if not (self.api_key.isascii() and self.api_key.isprintable()):
            raise ConfigError(
                "the API key has a line break or a character outside ASCII; headers cannot carry it"
            )
