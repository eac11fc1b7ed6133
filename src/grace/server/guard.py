"""Before any handler: API keys, the size and type of bodies, and what is counted."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import MutableMapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from grace.server.counters import Counters
from grace.server.errors import ApiError
from grace.server.settings import ServerSettings

PROTECTED = "/v1/"
READ_ON = 8  # times the largest body


class Guard:
    """ASGI middleware around an application."""

    def __init__(
        self, app: ASGIApp, settings: ServerSettings, counters: Counters, paths: set[str]
    ) -> None:
        self._app, self._settings, self._counters = app, settings, counters
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"] if scope["path"] in self._paths else "other"
        start, status = time.monotonic(), 499  # of a client that left before the answer began

        async def watched(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._answer(scope, receive, watched)
        finally:
            self._counters.requests.labels(path, status).inc()
            self._counters.seconds.labels(path).observe(time.monotonic() - start)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            headers = {name.lower(): value for name, value in scope["headers"]}
            if scope["path"].startswith(PROTECTED):
                self._check_key(headers.get(b"authorization", b""))
            if scope["method"] == "POST":
                receive = await self._body(headers, receive)
        except ApiError as error:
            await _send(error, send)
            return
        await self._app(scope, receive, send)

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
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                body = await self._read(receive)
        except TimeoutError:
            raise ApiError(408, "the body did not arrive in time; send it faster") from None
        waiting = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return waiting.pop() if waiting else await receive()

        return replay

    async def _read(self, receive: Receive) -> bytes:
        """Return the body; of one that is too large some is read on, so that the answer arrives."""
        limit = self._settings.max_body
        body, size, more = bytearray(), 0, True
        while more and size <= READ_ON * limit:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ApiError(400, "the client left before its body was complete")
            part = message.get("body", b"")
            size += len(part)
            body += part if size <= limit else b""
            more = message.get("more_body", False)
        if size > limit:
            raise ApiError(413, f"the body has over {limit} bytes; send less", code="too_large")
        return bytes(body)


async def _send(error: ApiError, send: Send) -> None:
    body = json.dumps(error.body).encode()
    head = {"content-type": "application/json", "content-length": str(len(body)), **error.headers}
    if error.status in (408, 413):
        head["connection"] = "close"
    raw = [(name.lower().encode(), value.encode()) for name, value in head.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
