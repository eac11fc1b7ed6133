"""Checks before any handler: Host, API key, size and type of the body; request ids and metrics."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import logging
import re
import time
import uuid
from collections.abc import MutableMapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from grace.server.counters import Counters
from grace.server.errors import ApiError, as_api_error, shutting_down
from grace.server.settings import ServerSettings

log = logging.getLogger(__name__)
REQUEST_ID = "x-request-id"
VALID_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)  # the client may choose an id like this
PROTECTED = "/v1/"
MAX_BODY = 2**20  # bytes of one body
BODY_S = 30  # for a body to arrive
REFUSED_S = 1.0  # for one that is refused whatever it is


class Guard:
    """ASGI middleware that refuses bad requests and counts all of them, by their routes."""

    def __init__(self, app: ASGIApp, settings: ServerSettings, counters: Counters) -> None:
        self._app, self._settings, self._counters = app, settings, counters
        self._hosts = {"localhost", *map(_name_in, settings.hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on or refuse it; every answer carries the request's id."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        routes = scope["app"].routes
        found = (route for route in routes if route.matches(scope)[0] != Match.NONE)
        path = getattr(next(found, None), "path_format", "other")
        request_id = Headers(scope=scope).get(REQUEST_ID, "")
        if not VALID_ID.fullmatch(request_id):
            request_id = f"req-{uuid.uuid4().hex}"
        start, status = time.monotonic(), 499  # stays 499 if the client leaves before an answer

        async def watched(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[REQUEST_ID] = request_id
                if status == 500:
                    log.error("request %s failed", request_id)
            await send(message)

        # HEAD is answered as GET: uvicorn leaves out the body
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        try:
            await self._answer({**scope, "method": method}, receive, watched)
        except asyncio.CancelledError:  # the server stops
            if status == 499:
                told = shutting_down()
                await JSONResponse(told.body, told.status)(scope, receive, watched)
        except Exception as error:
            if status != 499:  # too late for another answer
                raise
            log.exception("a request failed")
            shown = as_api_error(error)
            await JSONResponse(shown.body, shown.status)(scope, receive, watched)
        finally:
            self._counters.requests.labels(path, status).inc()
            self._counters.seconds.labels(path).observe(time.monotonic() - start)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, body = Headers(scope=scope), b""
        posted = scope["method"] == "POST"
        try:
            try:
                self._check_host(headers.get("host", ""))
                if scope["path"].startswith(PROTECTED):
                    self._check_key(headers.get("authorization", ""))
            except ApiError:
                if posted:  # the refusal must reach who is still sending
                    with contextlib.suppress(ApiError):
                        await self._read(receive, REFUSED_S)
                raise
            if posted:
                body = await self._read(receive, min(BODY_S, self._settings.timeout_s))
                _check_body(body, headers.get("content-type", ""))
        except ApiError as error:
            await JSONResponse(error.body, error.status, error.headers)(scope, receive, send)
            return
        waiting = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return waiting.pop() if waiting else await receive()

        await self._app(scope, replay, send)

    def _check_host(self, host: str) -> None:
        """Refuse a host name that is not the server's own (DNS rebinding); IPs are safe."""
        name = _name_in(host)
        if not name or name in self._hosts:
            return
        with contextlib.suppress(ValueError):
            ipaddress.ip_address(name)
            return
        raise ApiError(
            421,
            f"this server is not called {name[:80]!r}; use its address, or start it with "
            "--allow-host NAME",
            code="unknown_host",
        )

    def _check_key(self, header: str) -> None:
        expected = self._settings.api_key.encode()
        scheme, _, key = header.partition(" ")
        valid = scheme.lower() == "bearer" and hmac.compare_digest(key.strip().encode(), expected)
        if expected and not valid:
            raise ApiError(
                401, "no valid API key; send `Authorization: Bearer KEY`", code="invalid_api_key"
            )

    async def _read(self, receive: Receive, seconds: float) -> bytes:
        """Read a body to its end; of one that is too large, keep no more than tells that."""
        body, more = bytearray(), True
        try:
            async with asyncio.timeout(seconds):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ApiError(400, "the client left before its body was complete")
                    if len(body) <= MAX_BODY:
                        body += message.get("body", b"")
                    more = message.get("more_body", False)
        except TimeoutError:
            raise ApiError(408, "the body did not arrive in time; send it faster") from None
        return bytes(body)


def _check_body(body: bytes, kind: str) -> None:
    if kind.split(";")[0].strip().lower() != "application/json":
        raise ApiError(415, "the body is not JSON; send `Content-Type: application/json`")
    if len(body) > MAX_BODY:
        raise ApiError(413, f"the body has over {MAX_BODY} bytes; send less", code="too_large")


def _name_in(host: str) -> str:
    """Return the name or address in a Host header, without the port."""
    host = host.strip().lower()
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return name.rstrip(".")
