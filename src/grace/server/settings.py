"""The settings of a server: name, key and limits."""

from __future__ import annotations

from dataclasses import dataclass

from grace.engines.http.upstream import check_key, check_number, checked_url
from grace.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class FallbackSettings:
    """A bigger model that answers below a threshold.

    Attributes:
        url: the address of its server, which speaks OpenAI's API.
        model: its name there.
        below: the confidence below which it is asked.
        api_key: the key of its server, empty for none.
    """

    url: str
    model: str
    below: float
    api_key: str = ""

    def __post_init__(self) -> None:
        check_key(self.api_key)
        checked_url(self.url)
        if not 0 < self.below <= 1:
            raise ConfigError(f"below is {self.below:g}; give a confidence above 0, at most 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Settings of a server; a request beyond a limit is refused, never cut down.

    Attributes:
        name: the model's name for clients.
        api_key: the key that clients must send as `Authorization: Bearer KEY`; empty: none.
        max_tokens: maximum number of tokens of one answer.
        hosts: names of the server in a Host header, besides addresses and `localhost`.
        max_waiting: maximum number of waiting requests; further ones get 429.
        max_running: maximum number of requests that are relayed upstream at a time.
        timeout_s: maximum time from a request's arrival to its last byte.
        fallback: a bigger model for answers of little confidence, if any.
    """

    name: str = "grace"
    api_key: str = ""
    max_tokens: int = 4096
    hosts: tuple[str, ...] = ()
    max_waiting: int = 64
    max_running: int = 256
    timeout_s: float = 300.0
    fallback: FallbackSettings | None = None

    def __post_init__(self) -> None:
        for name in ("max_tokens", "max_waiting", "max_running"):
            check_number(name, getattr(self, name), least=1)
        if not self.timeout_s > 0:
            raise ConfigError(f"timeout_s is {self.timeout_s}; set a positive number of seconds")
        check_key(self.api_key)
