"""Requests to an OpenAI-compatible server, with patience where it is busy and clear errors.

The server's own message is part of every error, its address of none: errors are shown to clients.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Literal

from grace.errors import ConfigError, GraceError

if TYPE_CHECKING:
    from httpx2 import AsyncClient, Response

CONNECT_S = 10.0
LONGEST_WAIT_S = 30.0
FIRST_WAIT_S = 0.5
BUSY = (429, 503)
LONGEST_LINE = 2**24  # bytes of one event of a stream
Json = dict[str, Any]
Why = Literal[
    "unreachable", "busy", "refused", "invalid", "failed", "broken", "malformed", "unsupported"
]


class UpstreamError(GraceError):
    """The server did not do what was asked of it.

    `why` is `unreachable` (no connection), `busy` (429 or 503 to the end of all retries, come back
    after `retry_after_s`), `refused` (keys, an unknown model), `invalid` (the request, as it says),
    `failed` (its own error), `broken` (the connection ended within an answer), `malformed` (an
    answer that is none) or `unsupported` (it lacks something that is needed).
    """

    def __init__(self, message: str, why: Why, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.why = why
        self.retry_after_s = retry_after_s


class Upstream:
    """An asynchronous client of one server; use it on one event loop.

    Args:
        url: the server's address, with or without `/v1`.
        api_key: sent as a bearer token; empty: none.
        timeout_s: longest silence of the server.
        retries: how often a request is repeated when the server is busy or gone.
        max_in_flight: most requests at a time.

    Raises:
        ConfigError: the address is none, or the HTTP client is not installed.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str = "",
        timeout_s: float = 600.0,
        retries: int = 4,
        max_in_flight: int = 64,
    ) -> None:
        self.url = _checked(url)
        self._retries, self._timeout_s = retries, timeout_s
        self.max_in_flight = max_in_flight
        self._slots = asyncio.Semaphore(max_in_flight)
        self._client = _client(api_key, timeout_s, max_in_flight)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def get(self, path: str) -> Any:
        """Return the JSON at a path below the server's address.

        Raises:
            UpstreamError: see there.
        """
        async with self._slots:
            response = await self._send("GET", path, None)
            try:
                return _parsed(await self._read(response))
            finally:
                await response.aclose()

    async def complete(self, body: Json) -> Json:
        """Return the whole answer of `/v1/completions`.

        Raises:
            UpstreamError: see there.
        """
        async with self._slots:
            response = await self._send("POST", "/v1/completions", body)
            try:
                return _choice(_parsed(await self._read(response)))
            finally:
                await response.aclose()

    async def stream(self, body: Json) -> AsyncGenerator[Json, None]:
        """Yield the parts of the only choice as they arrive; closing this hangs up.

        Raises:
            UpstreamError: see there; an answer without its end is `broken`.
        """
        async with self._slots:
            response = await self._send("POST", "/v1/completions", body)
            try:
                async with aclosing(self._events(response)) as events:
                    async for event in events:
                        if event == "[DONE]":
                            return
                        parsed = _parsed(event)
                        if parsed.get("choices") != []:  # a report of usage at the end
                            yield _choice(parsed)
                raise UpstreamError("the upstream broke off within an answer", "broken")
            finally:
                await response.aclose()

    async def _send(self, method: str, path: str, body: Json | None) -> Response:
        """Return an open response of status 200."""
        from httpx2 import RequestError, TimeoutException

        for attempt in range(self._retries + 1):
            request = self._client.build_request(method, self.url + path, json=body)
            try:
                response = await self._client.send(request, stream=True)
            except RequestError as error:
                failure = self._unreachable(error)
                if isinstance(error, TimeoutException):
                    raise failure from None
            else:
                if response.status_code == 200:
                    return response
                failure = await self._refusal(response)
            if attempt == self._retries or failure.why not in ("busy", "unreachable"):
                raise failure
            await asyncio.sleep(_wait_s(attempt, failure))
        raise AssertionError

    async def _read(self, response: Response) -> bytes:
        return b"".join([part async for part in self._parts(response)])

    async def _events(self, response: Response) -> AsyncGenerator[str, None]:
        """Yield the data of server-sent events; only a line feed ends a line."""
        kept = b""
        async for part in self._parts(response):
            *lines, kept = (kept + part).split(b"\n")
            for line in lines:
                if line.startswith(b"data:"):
                    yield line[5:].strip().decode("utf-8", "replace")
            if len(kept) > LONGEST_LINE:
                raise UpstreamError(
                    f"the upstream sent a line of over {LONGEST_LINE} bytes", "malformed"
                )

    async def _parts(self, response: Response) -> AsyncIterator[bytes]:
        from httpx2 import RequestError

        try:
            async for part in response.aiter_bytes():
                yield part
        except RequestError as error:
            said = str(error) or type(error).__name__
            raise UpstreamError(
                f"the upstream broke off within an answer ({said})", "broken"
            ) from None

    async def _refusal(self, response: Response) -> UpstreamError:
        try:
            said = _message(await self._read(response))
        finally:
            await response.aclose()
        status = response.status_code
        text = f"the upstream answers {status}: {said}"
        if status in BUSY:
            return UpstreamError(text, "busy", _seconds(response.headers.get("retry-after")))
        if status in (401, 403, 404):
            return UpstreamError(text, "refused")
        return UpstreamError(text, "invalid" if status in (400, 413, 422) else "failed")

    def _unreachable(self, error: Exception) -> UpstreamError:
        said = str(error) or type(error).__name__
        return UpstreamError(f"no answer from the upstream ({said}); is it running?", "unreachable")


def _client(api_key: str, timeout_s: float, max_in_flight: int) -> AsyncClient:
    try:
        import httpx2
    except ImportError:
        raise ConfigError(
            "an upstream server needs httpx2; pip install 'grace-confidence[server]'"
        ) from None
    return httpx2.AsyncClient(
        headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
        timeout=httpx2.Timeout(timeout_s, connect=CONNECT_S, pool=None),
        limits=httpx2.Limits(max_connections=max_in_flight, max_keepalive_connections=None),
    )


def _checked(url: str) -> str:
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{url!r} is no address of a server; give e.g. http://127.0.0.1:8000")
    return url.rstrip("/").removesuffix("/v1")


def _wait_s(attempt: int, failure: UpstreamError) -> float:
    backoff = FIRST_WAIT_S * 2.0**attempt * random.uniform(0.5, 1.0)
    asked = failure.retry_after_s if failure.why == "busy" else 0.0
    return min(max(backoff, asked), LONGEST_WAIT_S)


def _seconds(value: str | None) -> float:
    """Return the seconds of a Retry-After header; dates and nonsense count as one."""
    return float(value) if value and value.strip().isdecimal() else 1.0


def _parsed(content: bytes | str) -> Json:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise UpstreamError(f"the upstream sent no JSON object: {content[:80]!r}", "malformed")
    if value.get("error"):
        raise UpstreamError(f"the upstream failed: {_said(value)}", "failed")
    return value


def _choice(answer: Json) -> Json:
    choices = answer.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise UpstreamError(f"the upstream sent no choice: {str(answer)[:80]!r}", "malformed")
    return choices[0]


def _message(content: bytes) -> str:
    try:
        return _said(json.loads(content))
    except (ValueError, RecursionError):
        return content[:200].decode("utf-8", "replace").strip() or "(nothing)"


def _said(answer: Any) -> str:
    """Return the message in an error of OpenAI's form, or what there is in its place."""
    error = answer.get("error", answer) if isinstance(answer, dict) else answer
    message = error.get("message") if isinstance(error, dict) else None
    return str(message or error).strip().replace("\n", " ")[:500]
