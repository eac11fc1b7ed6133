"""Running the application: a socket, its connections, signals, and how it ends."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, NoReturn

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from grace.errors import ConfigError

if TYPE_CHECKING:
    from fastapi import FastAPI

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
        """True while every request that arrived is answered."""
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


LOOPBACK = ("127.0.0.1", "::1", "localhost")
DRAIN_S = 5  # after a signal, to answer what has arrived
TOLD_S = 1  # then, to tell the others that the server ends
MOST_CONNECTIONS = 1024
OTHER_FILES = 128  # what the process has open besides, connections that are being closed included
ACCEPTED = 16  # connections at a time, so that closing keeps up with opening
BACKLOG = 2048
LINES, LINES_S = 30, 10.0  # most lines of the log in so many seconds


class Server(uvicorn.Server):
    """uvicorn's server with a bound on its connections and on the time that it takes to end."""

    def __init__(self, app: FastAPI) -> None:
        config = uvicorn.Config(
            app,
            http=Connection,
            ws="none",
            log_level="warning",
            log_config=None,
            access_log=False,
            server_header=False,
            backlog=ACCEPTED,
            limit_concurrency=room_for_connections(),
            timeout_graceful_shutdown=DRAIN_S + 2 * TOLD_S,
        )
        super().__init__(config)
        self._end = app.state.end

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept a few connections at a time, and let many wait for that."""
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(BACKLOG)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer what has arrived, while there is time."""
        hurrying = asyncio.ensure_future(self._hurry())
        try:
            await super().shutdown(sockets)
        finally:
            hurrying.cancel()

    async def _hurry(self) -> None:
        for _ in range(DRAIN_S):
            await asyncio.sleep(1)
            self._abort(idle=True)  # they were still being accepted
        self._end()
        await asyncio.sleep(TOLD_S)
        self._abort(idle=False)  # their clients do not read

    def _abort(self, *, idle: bool) -> None:
        for connection in list(self.server_state.connections):
            if isinstance(connection, Connection) and (connection.idle or not idle):
                connection.transport.abort()


class FewLines(logging.Filter):
    """Lets a number of lines through in a time, and then says how many it has left out."""

    def __init__(self) -> None:
        super().__init__()
        self._start, self._count = 0.0, 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the line is written."""
        now = time.monotonic()
        if now - self._start > LINES_S:
            if self._count > LINES:
                record.msg = f"({self._count - LINES} lines left out) {record.msg}"
            self._start, self._count = now, 0
        self._count += 1
        return self._count <= LINES


def room_for_connections() -> int:
    """Return a bound on connections that leaves room for other files, after asking for more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_CONNECTIONS + OTHER_FILES
    if 0 <= soft < wanted:
        soft = wanted if hard < 0 else min(hard, wanted)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(
        ACCEPTED, MOST_CONNECTIONS if soft < 0 else min(MOST_CONNECTIONS, soft - OTHER_FILES)
    )


def serve(app: FastAPI, *, host: str, port: int, name: str, protected: bool) -> None:
    """Serve until SIGINT or SIGTERM; what has arrived then is answered, if that takes seconds.

    Args:
        app: the application.
        host: the address to listen on.
        port: the port; 0 takes a free one.
        name: what clients call the model.
        protected: clients need an API key.

    Raises:
        ConfigError: the address cannot be listened on.
    """
    listening = _listen(host, port)
    url = _url(host, listening.getsockname()[1])
    to_stderr = logging.StreamHandler()
    to_stderr.addFilter(FewLines())
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[to_stderr])
    if host not in LOOPBACK and not protected:
        print(
            f"grace: warning: whoever reaches {host} can use the model; set --api-key, or listen "
            "on 127.0.0.1",
            file=sys.stderr,
        )
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _quietly)  # uvicorn hands them on once it has drained
    print(f"serving {name} on {url} (page) and {url}/v1 (API); Ctrl-C ends it", flush=True)
    print(f"next:   {_example(url, name, protected)}", flush=True)
    with listening:
        Server(app).run(sockets=[listening])


def leave() -> NoReturn:
    """End this process at once, after `serve`.

    One of its threads may be in a long pass of the model, and to take torch apart takes seconds.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"cannot listen on {host} port {port}: {reason}; choose others with --host and --port"
        ) from None


def _url(host: str, port: int) -> str:
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"


def _example(url: str, name: str, protected: bool) -> str:
    key = ' -H "Authorization: Bearer $GRACE_API_KEY"' if protected else ""
    body = (
        f'{{"model": "{name}", "messages": [{{"role": "user", "content": "your question"}}], '
        '"grace": {"budget": 8}}'
    )
    return f"curl {url}/v1/chat/completions{key} -H 'Content-Type: application/json' -d '{body}'"


def _quietly(*_: object) -> None:
    pass
