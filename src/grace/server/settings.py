"""The settings of a server: name, key and limits."""

from __future__ import annotations

from dataclasses import dataclass

from grace.engines.http.upstream import check_key, check_number, checked_url
from grace.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class FallbackSettings:
    """A bigger model that answers below a threshold."""

    url: str  # of its server, which speaks OpenAI's API
    model: str  # its name there
    below: float  # confidence below which it is asked
    api_key: str = ""  # of its server, if any

    def __post_init__(self) -> None:
        check_key(self.api_key)
        checked_url(self.url)
        if not 0 < self.below <= 1:
            raise ConfigError(f"below is {self.below:g}; give a confidence above 0, at most 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Settings of a server; a request beyond a limit is refused, never cut down."""

    name: str = "grace"  # of the model, for clients
    api_key: str = ""  # that clients must send as `Authorization: Bearer KEY`, if any
    max_tokens: int = 4096  # of one answer
    hosts: tuple[str, ...] = ()  # in a Host header, besides addresses and `localhost`
    max_waiting: int = 256  # requests; further ones get 429
    max_running: int = 256  # requests relayed upstream at a time
    timeout_s: float = 300.0  # from a request's arrival to its last byte
    fallback: FallbackSettings | None = None  # for answers of little confidence

    def __post_init__(self) -> None:
        for name in ("max_tokens", "max_waiting", "max_running"):
            check_number(name, getattr(self, name), least=1)
        if not self.timeout_s > 0:
            raise ConfigError(f"timeout_s is {self.timeout_s}; set a positive number of seconds")
        check_key(self.api_key)
