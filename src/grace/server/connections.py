"""Connections that cost the server something while they say nothing.

uvicorn closes what is idle between two requests. Here besides: a head that does not arrive, an
answer that is not read, and more connections than the server has room for.
"""

from __future__ import annotations

import asyncio
import sys
import time

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 10  # for the head of a request to arrive
STALL_S = 30  # for a client to read on


class Connection(H11Protocol):
    """One client's connection.

    There are fewer connections than uvicorn's `limit_concurrency`: for a new one, the one goes that
    has waited longest without a request. Only when all are being answered the new one goes.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start to wait for the first head."""
        super().connection_made(transport)
        self._since = time.monotonic()
        self._head = Patience(HEAD_S, transport)
        self._reading = Patience(STALL_S, transport)
        self._head.start()
        while len(self.connections) >= (self.limit_concurrency or sys.maxsize):
            idle = [one for one in self.connections if isinstance(one, Connection) and one.idle]
            victim = min(idle, key=lambda one: one._since, default=self)
            self.connections.discard(victim)
            victim.transport.abort()

    @property
    def idle(self) -> bool:
        """Whether no request has arrived that is not answered."""
        return self.cycle is None or self.cycle.response_complete

    def data_received(self, data: bytes) -> None:
        """Take some bytes; a head that has begun must end in time."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self.idle:
            self._head.start()
        else:
            self._head.stop()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._since = time.monotonic()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Wait for a client that reads too slowly, but not for ever."""
        super().pause_writing()
        self._reading.start()

    def resume_writing(self) -> None:
        """Go on writing."""
        super().resume_writing()
        self._reading.stop()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        super().connection_lost(exc)
        self._head.stop()
        self._reading.stop()

    def shutdown(self) -> None:
        """Close, after the answer to a request that has arrived in full."""
        if not self.idle and self.cycle.more_body:
            self.transport.abort()
        else:
            super().shutdown()


class Patience:
    """Closes a connection after some seconds from `start`, unless `stop` comes before."""

    def __init__(self, seconds: float, transport: asyncio.Transport) -> None:
        self._seconds, self._transport = seconds, transport
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Count from now, if this does not count yet."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._seconds, self._transport.abort)

    def stop(self) -> None:
        """Wait for nothing any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
