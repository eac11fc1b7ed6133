"""A client of an OpenAI-compatible server, with retries while the server is busy."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import math
import random
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Literal

from grace.errors import ConfigError, GraceError

if TYPE_CHECKING:
    from httpx2 import AsyncClient, Response

CONNECT_S = 10.0
LONGEST_WAIT_S = 30.0  # unless the server asks for more
HEALTH_S = 2.0  # longest answer of a healthy server to a health check
FIRST_WAIT_S = 0.5
REASONS: dict[int, Why] = {  # of a status; all others are `failed`
    429: "busy",
    503: "busy",
    401: "refused",
    403: "refused",
    404: "refused",
    413: "too_large",
    400: "invalid",
    422: "invalid",
}
LONGEST_RETRY_S = 3600.0  # that a server may ask to wait


class Upstream:
    """A client of one server, for one event loop; `timeout_s` is the server's longest silence."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str = "",
        timeout_s: float = 600.0,
        retries: int = 4,
        max_in_flight: int = 64,
    ) -> None:
        self.url = checked_url(url)
        check_number("max_in_flight", max_in_flight, least=1)
        check_number("retries", retries, least=0)
        if not isinstance(timeout_s, int | float) or not timeout_s > 0:
            raise ConfigError(f"timeout_s is {timeout_s!r}; use more than 0")
        self._retries = retries
        self.max_in_flight = max_in_flight
        self._deadline = math.inf
        self._slots = asyncio.Semaphore(max_in_flight)
        self._client = _client(api_key, timeout_s)

    def until(self, deadline: float) -> Upstream:
        """Return this client for one caller, whose requests fail rather than outlast a deadline."""
        mine = copy.copy(self)
        mine._deadline = deadline
        return mine

    def at_most(self, requests: int) -> None:
        """Send at most so many requests at a time from now on."""
        self.max_in_flight = max(1, min(requests, self.max_in_flight))
        self._slots = asyncio.Semaphore(self.max_in_flight)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def json(self, path: str, body: Json | None = None) -> Json:
        """Return the JSON object at a path below the server's address; a body is posted."""
        async with self._slots:
            response = await self._send(path, body)
            try:
                return parsed(await self._read(response))
            finally:
                await response.aclose()

    async def trouble(self) -> str:
        """Return why the server does not answer, empty if it does; takes no slot."""
        from httpx2 import RequestError

        try:
            async with asyncio.timeout(HEALTH_S):
                response = await self._client.get(f"{self.url}/v1/models")
        except (RequestError, TimeoutError):
            return "the upstream does not answer"
        return "" if response.status_code == 200 else f"the upstream answers {response.status_code}"

    async def complete(self, body: Json) -> Json:
        """Return the only choice of the whole answer of `/v1/completions`."""
        return choice_of(await self.json("/v1/completions", body))

    async def stream(self, body: Json) -> AsyncGenerator[Json, None]:
        """Yield the parts of the only choice as they arrive; closing this ends the request."""
        async with aclosing(self.events("/v1/completions", body)) as answers:
            async for answer in answers:
                if answer.get("choices") != []:  # empty in the report of usage at the end
                    yield choice_of(answer)

    async def events(self, path: str, body: Json) -> AsyncGenerator[Json, None]:
        """Yield the parts of a streamed answer as they arrive; closing this ends the request."""
        async with self._slots:
            response = await self._send(path, body)
            try:
                async with aclosing(self._events(response)) as events:
                    async for event in events:
                        if event == "[DONE]":
                            return
                        yield parsed(event)
                raise UpstreamError("the upstream broke off within an answer", "broken")
            finally:
                await response.aclose()

    async def _send(self, path: str, body: Json | None) -> Response:
        """Return an open response with status 200."""
        from httpx2 import RequestError, TimeoutException

        method = "GET" if body is None else "POST"
        for attempt in range(self._retries + 1):
            request = self._client.build_request(method, self.url + path, json=body)
            try:
                response = await self._client.send(request, stream=True)
            except RequestError as error:
                detail = short(str(error) or type(error).__name__)
                text = f"no answer from the upstream ({detail}); is it running?"
                if isinstance(error, TimeoutException):
                    raise UpstreamError(text, "unreachable") from None
                failure = UpstreamError(text, "unreachable")
            else:
                if response.status_code == 200:
                    return response
                failure = await self._refusal(response)
            wait_s = _wait_s(attempt, failure)
            again = attempt < self._retries and failure.why in ("busy", "unreachable")
            try:
                if not again or time.monotonic() + wait_s >= self._deadline:
                    raise failure
            finally:
                del failure  # else it would hold itself, by this frame
            await asyncio.sleep(wait_s)
        raise AssertionError

    async def _read(self, response: Response) -> bytes:
        return b"".join([part async for part in self._parts(response)])

    async def _events(self, response: Response) -> AsyncGenerator[str, None]:
        # httpx2's `aiter_lines` also splits at characters that JSON may contain, such as U+2028.
        kept = bytearray()
        async for part in self._parts(response):
            kept += part
            if b"\n" in part:
                *lines, rest = kept.split(b"\n")
                kept = bytearray(rest)
                for line in lines:
                    if line.startswith(b"data:"):
                        yield line[5:].strip().decode("utf-8", "replace")

    async def _parts(self, response: Response) -> AsyncGenerator[bytes, None]:
        from httpx2 import RequestError

        try:
            async for part in response.aiter_bytes():
                yield part
        except RequestError as error:
            detail = short(str(error) or type(error).__name__)
            raise UpstreamError(
                "the upstream broke off within an answer", "broken", detail=detail
            ) from None

    async def _refusal(self, response: Response) -> UpstreamError:
        try:
            body = await self._read(response)
        finally:
            await response.aclose()
        why = REASONS.get(response.status_code, "failed")
        seconds = response.headers.get("retry-after", "") if why == "busy" else ""
        return UpstreamError(
            f"the upstream answers {response.status_code}",
            why,
            detail=message(body),
            retry_after_s=min(float(seconds), LONGEST_RETRY_S)
            if seconds.strip().isdecimal()
            else 1.0,
        )


def check_number(name: str, value: Any, *, least: int) -> None:
    """Check that an argument is a whole number, and not too small."""
    if not isinstance(value, int) or value < least:
        raise ConfigError(f"{name} is {value!r}; use {least} or more")


def check_key(key: str) -> None:
    """Check that an API key is text that fits into a header."""
    if not isinstance(key, str):
        raise ConfigError("the API key is no text; put it into GRACE_UPSTREAM_KEY, or in quotes")
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(
            "the API key has a line break or a character outside ASCII, which no header can "
            "carry; choose another key"
        )


def _client(api_key: str, timeout_s: float) -> AsyncClient:
    import httpx2

    check_key(api_key)
    return httpx2.AsyncClient(
        headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
        timeout=httpx2.Timeout(timeout_s, connect=CONNECT_S, pool=None),
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None),
    )


def checked_url(url: str) -> str:
    """Return a server's address without `/v1`, refused if it is none."""
    from urllib.parse import urlsplit

    from httpx2 import URL, InvalidURL

    try:
        parts, port = URL(url), urlsplit(url).port  # either refuses what the other one takes
        usable = parts.scheme in ("http", "https") and parts.host and port != 0
    except (AttributeError, InvalidURL, TypeError, ValueError):  # the option may be a number
        usable = False
    if not usable:
        raise ConfigError(f"{url!r} is not a server address; give e.g. http://127.0.0.1:8000")
    return url.rstrip("/").removesuffix("/v1")


def _wait_s(attempt: int, failure: UpstreamError) -> float:
    backoff = FIRST_WAIT_S * 2.0**attempt * random.uniform(0.5, 1.0)
    wanted = failure.retry_after_s if failure.why == "busy" else 0.0
    return max(min(backoff, LONGEST_WAIT_S), wanted)


# --- what a server answers

# An error quotes the beginning of what the server said, and never its address; `server/errors.py`
# decides how much of it a client sees.

QUOTED = 300  # characters of the server's message in an error
Json = dict[str, Any]
Why = Literal[
    "unreachable",
    "busy",
    "refused",
    "invalid",
    "too_large",
    "failed",
    "broken",
    "malformed",
    "unsupported",
]


class UpstreamError(GraceError):
    """A request to an upstream server failed.

    Attributes:
        message: what happened.
        why: `unreachable` (no connection), `busy` (429 or 503 after all retries), `refused` (keys,
            an unknown model), `invalid` or `too_large` (it rejects the request), `failed` (an error
            of the server), `broken` (the connection ended within an answer), `malformed` (the
            answer cannot be parsed) or `unsupported` (the server lacks a feature that is needed).
        detail: the server's own message, empty if there is none.
        retry_after_s: how long a busy server asks to wait.
    """

    def __init__(
        self, message: str, why: Why, *, detail: str = "", retry_after_s: float = 1.0
    ) -> None:
        super().__init__(f"{message}: {detail}" if detail else message)
        self.message, self.detail = message, detail
        self.why = why
        self.retry_after_s = retry_after_s


@contextlib.contextmanager
def parsing(failure: str) -> Iterator[None]:
    """Turn an answer of an unexpected form into an `UpstreamError` with this message."""
    try:
        yield
    except (AttributeError, LookupError, OverflowError, TypeError, ValueError) as error:
        raise UpstreamError(failure, "malformed", detail=short(str(error))) from None


def parsed(content: bytes | str) -> Json:
    """Return the JSON object that a server sent."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise UpstreamError("the upstream sent no JSON object", "malformed", detail=_start(content))
    if value.get("error"):
        raise UpstreamError("the upstream failed", "failed", detail=_message(value))
    return value


def choice_of(answer: Json) -> Json:
    """Return the only choice of an answer."""
    choices = answer.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise UpstreamError("the upstream sent no choice", "malformed", detail=short(str(answer)))
    return choices[0]


def message(content: bytes) -> str:
    """Return the message in the body of an error."""
    try:
        return _message(json.loads(content))
    except (ValueError, RecursionError):
        return _start(content) or "(nothing)"


def _message(answer: Any) -> str:
    """Return the message in an error of OpenAI's form, or the whole answer."""
    error = answer.get("error", answer) if isinstance(answer, dict) else answer
    message = error.get("message") if isinstance(error, dict) else None
    return short(str(message or error))


def _start(content: bytes | str) -> str:
    start = content[: 4 * QUOTED]
    return short(start.decode("utf-8", "replace") if isinstance(start, bytes) else start)


def short(text: str) -> str:
    """Return the beginning of a text in one line, without control characters."""
    line = " ".join(text[: 4 * QUOTED].split())
    shown = "".join(char for char in line if char.isprintable())
    return shown if len(shown) <= QUOTED else shown[:QUOTED] + "…"
