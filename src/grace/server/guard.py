"""Before any handler: names, API keys, the size and type of bodies, ids, and what is counted."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import json
import logging
import re
import time
import uuid
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from grace.server.counters import Counters
from grace.server.errors import ApiError
from grace.server.settings import ServerSettings

log = logging.getLogger(__name__)
NAME = b"x-request-id"
GIVEN = re.compile(rb"[\w.:-]{1,128}")  # what a client may name its request


def _name(given: bytes) -> bytes:
    return given if GIVEN.fullmatch(given) else f"req-{uuid.uuid4().hex}".encode()


PROTECTED = "/v1/"
MAX_BODY = 2**20  # bytes of a request
MAX_UNFINISHED = 2**25  # bytes of requests that have not arrived in full, all together
READ_ON = 8  # times the largest body
BODY_S = 30  # for a body to arrive


class Guard:
    """ASGI middleware around an application."""

    def __init__(
        self, app: ASGIApp, settings: ServerSettings, counters: Counters, paths: set[str]
    ) -> None:
        self._app, self._settings, self._counters = app, settings, counters
        self._paths = paths
        self._hosts = {"localhost", *(name.lower().rstrip(".") for name in settings.hosts)}
        self._unfinished = Unfinished(MAX_UNFINISHED)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it; every answer tells the name of its request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"] if scope["path"] in self._paths else "other"
        name = _name(dict(scope["headers"]).get(NAME, b""))
        start, status = time.monotonic(), 499  # of a client that left before the answer began

        async def watched(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (NAME, name)]
                if status == 500:
                    log.error("request %s failed", name.decode())
            await send(message)

        asked = "GET" if scope["method"] == "HEAD" else scope["method"]  # the server drops the body
        try:
            await self._answer({**scope, "method": asked}, receive, watched)
        finally:
            self._counters.requests.labels(path, status).inc()
            self._counters.seconds.labels(path).observe(time.monotonic() - start)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            headers = {name.lower(): value for name, value in scope["headers"]}
            self._check_host(headers.get(b"host", b"").decode("latin-1"))
            if scope["path"].startswith(PROTECTED):
                self._check_key(headers.get(b"authorization", b""))
            if scope["method"] == "POST":
                receive = await self._body(headers, receive)
        except ApiError as error:
            await _send(error, send)
            return
        await self._app(scope, receive, send)

    def _check_host(self, given: str) -> None:
        """Refuse a name that is not the server's own.

        A page in a browser may let its own name point to this machine (DNS rebinding) and would
        then read what is answered. An address cannot be made to point elsewhere.
        """
        name = _name_in(given)
        if not name or name in self._hosts or _is_address(name):
            return
        raise ApiError(
            421,
            f"this server is not called {name[:80]!r}; use its address, or start it with "
            "--allow-host NAME",
            code="unknown_host",
        )

    def _check_key(self, given: bytes) -> None:
        wanted = self._settings.api_key.encode()
        scheme, _, key = given.partition(b" ")
        known = scheme.lower() == b"bearer" and hmac.compare_digest(key.strip(), wanted)
        if wanted and not known:
            raise ApiError(
                401, "no valid API key; send `Authorization: Bearer KEY`", code="invalid_api_key"
            )

    async def _body(self, headers: dict[bytes, bytes], receive: Receive) -> Receive:
        """Read the whole body within its limits, and return what hands it on."""
        kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
        if kind != b"application/json":
            raise ApiError(415, "the body is not JSON; send `Content-Type: application/json`")
        limit_s = min(BODY_S, self._settings.timeout_s)
        try:
            async with asyncio.timeout(limit_s) as limit:
                with self._unfinished.body(limit) as grows:
                    body = await self._read(receive, grows)
        except TimeoutError:
            raise ApiError(408, "the body did not arrive in time; send it faster") from None
        waiting = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return waiting.pop() if waiting else await receive()

        return replay

    async def _read(self, receive: Receive, grows: Callable[[int], None]) -> bytes:
        """Return the body; of one that is too large some is read on, so that the answer arrives."""
        body, size, more = bytearray(), 0, True
        while more and size <= READ_ON * MAX_BODY:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ApiError(400, "the client left before its body was complete")
            part = message.get("body", b"")
            size += len(part)
            if size <= MAX_BODY:
                body += part
                grows(len(part))
            more = message.get("more_body", False)
        if size > MAX_BODY:
            raise ApiError(413, f"the body has over {MAX_BODY} bytes; send less", code="too_large")
        return bytes(body)


class Unfinished:
    """Bodies that have not arrived in full; where they take too much memory, the largest goes."""

    def __init__(self, most: int) -> None:
        self._most, self._sizes = most, dict[asyncio.Timeout, int]()

    @contextlib.contextmanager
    def body(self, limit: asyncio.Timeout) -> Iterator[Callable[[int], None]]:
        """Yield what is told of every part of a body; `limit` ends the body."""
        self._sizes[limit] = 0

        def grows(size: int) -> None:
            if limit in self._sizes:
                self._sizes[limit] += size
            if sum(self._sizes.values()) > self._most:
                self._drop(max(self._sizes, key=self._sizes.__getitem__))

        try:
            yield grows
        finally:
            self._sizes.pop(limit, None)

    def _drop(self, largest: asyncio.Timeout) -> None:
        del self._sizes[largest]
        if not largest.expired():
            largest.reschedule(asyncio.get_running_loop().time())


def _name_in(host: str) -> str:
    """Return the name or address in a Host header, without a port."""
    host = host.strip().lower()
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return name.rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


async def _send(error: ApiError, send: Send) -> None:
    body = json.dumps(error.body).encode()
    head = {"content-type": "application/json", "content-length": str(len(body)), **error.headers}
    if error.status in (408, 413):
        head["connection"] = "close"
    raw = [(name.lower().encode(), value.encode()) for name, value in head.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
