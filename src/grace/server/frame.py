"""Around everything: each answer has an `x-request-id`, and HEAD is answered as GET is."""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import MutableMapping
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

log = logging.getLogger(__name__)
NAME = b"x-request-id"
GIVEN = re.compile(rb"[\w.:-]{1,128}")  # what a client may name its request


class Frame:
    """ASGI middleware around an application and its guard."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; what goes wrong within is logged under the request's name."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        name = _name(dict(scope["headers"]).get(NAME, b""))

        async def named(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (NAME, name)]
                if message["status"] == 500:
                    log.error("request %s failed", name.decode())
            await send(message)

        asked = "GET" if scope["method"] == "HEAD" else scope["method"]  # the server drops the body
        await self._app({**scope, "method": asked}, receive, named)


def _name(given: bytes) -> bytes:
    return given if GIVEN.fullmatch(given) else f"req-{uuid.uuid4().hex}".encode()
