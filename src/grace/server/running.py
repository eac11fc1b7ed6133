"""Runs the application: its socket, limits on connections, signals, and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import resource
import shlex
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from grace.errors import ConfigError
from grace.server.tracing import send_traces

if TYPE_CHECKING:
    from fastapi import FastAPI

LOOPBACK = ("127.0.0.1", "::1", "localhost")
HEAD_S = 10  # for the head of a request to arrive
STALL_S = 30  # for a client to go on reading
LINGER_S = 5  # for a client that is still sending to read the answer that it gets already
MOST_DROPPED = 2**23  # bytes that it may send meanwhile
MOST_PARTS = 4096  # of one body; parsing a part takes as long as parsing 5 bytes or 500
TOO_MANY_PARTS = f"The body came in over {MOST_PARTS} parts; send larger ones."
DRAIN_S = 5  # after a signal, to answer the requests that have arrived
TOLD_S = 1  # then, for the others to receive a 503
MOST_CONNECTIONS = 1024
OTHER_FILES = 128  # open files besides connections, those being closed included
ACCEPTED = 16  # connections accepted at a time, so that closing keeps up with opening
BACKLOG = 2048
LINES, LINES_S = 30, 10.0  # at most so many log lines in so many seconds


class Parser(h11.Connection):
    """Parses requests, and refuses a body of too many parts."""

    parts = 0  # of the body that is arriving

    def next_event(self) -> Any:
        """Return the next event (see h11)."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            self.parts = 0
        elif isinstance(event, h11.Data):
            self.parts += 1
            if self.parts > MOST_PARTS:
                raise h11.RemoteProtocolError(TOO_MANY_PARTS)
        return event


class Lingering:
    """A transport whose `close` lets a client that is still sending read the answer first.

    What it sends is dropped meanwhile: a socket closed with unread bytes resets the connection, and
    the client may lose the answer.
    """

    def __init__(self, transport: asyncio.Transport, conn: Parser) -> None:
        self._transport, self._conn = transport, conn
        self._end = Deadline(LINGER_S, transport)
        self._lingers, self._dropped = False, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        """Return whether nothing more is to be read."""
        return self._lingers or self._transport.is_closing()

    def close(self) -> None:
        """Close, at once or once the client has read the answer."""
        if self._conn.their_state is not h11.SEND_BODY:
            self._transport.close()
        elif not self.is_closing():
            self._lingers = True
            self._end.start()
            with contextlib.suppress(OSError):  # the client has left
                self._transport.write_eof()
            self._transport.resume_reading()

    def drop(self, size: int) -> None:
        """Count bytes that nobody reads; too many end the connection."""
        self._dropped += size
        if self._dropped > MOST_DROPPED:
            self._transport.abort()

    def lost(self) -> None:
        """Stop the timer, since the connection has ended."""
        self._end.stop()


class Connection(H11Protocol):
    """One client's connection.

    There are fewer connections than uvicorn's `limit_concurrency`: a new one replaces the one that
    has been idle longest. Only if none is idle, the new one is closed.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first head; close an idle connection if there are too many."""
        super().connection_made(transport)
        self.conn: Parser = Parser(h11.SERVER)
        self.transport: Lingering = Lingering(transport, self.conn)  # type: ignore[assignment]
        self._since = time.monotonic()
        self._head = Deadline(HEAD_S, transport)
        self._reading = Deadline(STALL_S, transport)
        self._head.start()
        while len(self.connections) >= (self.limit_concurrency or sys.maxsize):
            idle = [one for one in self.connections if isinstance(one, Connection) and one.idle]
            victim = min(idle, key=lambda one: one._since, default=self)
            self.connections.discard(victim)
            victim.transport.abort()

    @property
    def idle(self) -> bool:
        """Whether every request that arrived is answered."""
        return self.cycle is None or self.cycle.response_complete

    def data_received(self, data: bytes) -> None:
        """Take some bytes; the head of the next request must arrive in time."""
        if self.transport.is_closing():
            self.transport.drop(len(data))
            return
        super().data_received(data)
        if self.idle:
            self._head.start()
        else:
            self._head.stop()

    def on_response_complete(self) -> None:
        """Wait for the next request; the rest of this one is not parsed."""
        self._since = time.monotonic()
        if self.cycle.more_body:
            self.transport.close()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request, and end the request that it belongs to."""
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):  # an answer has begun
            self.transport.abort()
            return
        super().send_400_response(TOO_MANY_PARTS if self.conn.parts > MOST_PARTS else msg)

    def pause_writing(self) -> None:
        """Wait for a client that reads too slowly, but not forever."""
        super().pause_writing()
        self._reading.start()

    def resume_writing(self) -> None:
        """Go on: the client has read."""
        super().resume_writing()
        self._reading.stop()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers, which hold the connection."""
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._head.stop()
        self._reading.stop()
        self.transport.lost()

    def shutdown(self) -> None:
        """Close; a request that has arrived in full is answered first."""
        if not self.idle and self.cycle.more_body:
            self.transport.abort()
        else:
            super().shutdown()


class Deadline:
    """Aborts a connection some seconds after `start`, unless `stop` is called before."""

    def __init__(self, seconds: float, transport: asyncio.Transport) -> None:
        self._seconds, self._transport = seconds, transport
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start the timer if it is not running."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._seconds, self._transport.abort)

    def stop(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Server(uvicorn.Server):
    """uvicorn's server with limits on its connections and on the time that it takes to stop."""

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
        """Accept `ACCEPTED` connections at a time, and let up to `BACKLOG` wait."""
        await super().startup(sockets)  # its backlog is also how many it accepts at a time
        for listening in sockets or ():
            listening.listen(BACKLOG)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer the requests that have arrived, within `DRAIN_S`."""
        hurrying = asyncio.ensure_future(self._hurry())
        try:
            await super().shutdown(sockets)
        finally:
            hurrying.cancel()

    async def _hurry(self) -> None:
        for _ in range(DRAIN_S):
            await asyncio.sleep(1)
            self._abort(idle=True)  # connections accepted since the signal
        self._end()
        await asyncio.sleep(TOLD_S)
        self._abort(idle=False)  # clients that do not read

    def _abort(self, *, idle: bool) -> None:
        for connection in list(self.server_state.connections):
            if isinstance(connection, Connection) and (connection.idle or not idle):
                connection.transport.abort()


class RateLimit(logging.Filter):
    """Lets `LINES` log lines through in `LINES_S` seconds, and counts the others."""

    def __init__(self) -> None:
        super().__init__()
        self._start, self._count = 0.0, 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write the line."""
        now = time.monotonic()
        if now - self._start > LINES_S:
            if self._count > LINES:
                record.msg = f"({self._count - LINES} lines left out) {record.msg}"
            self._start, self._count = now, 0
        self._count += 1
        return self._count <= LINES


def room_for_connections() -> int:
    """Raise the limit on open files if possible; return how many connections fit into it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_CONNECTIONS + OTHER_FILES
    if 0 <= soft < wanted:
        soft = wanted if hard < 0 else min(hard, wanted)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(
        ACCEPTED, MOST_CONNECTIONS if soft < 0 else min(MOST_CONNECTIONS, soft - OTHER_FILES)
    )


def serve(
    app: FastAPI, bound: socket.socket, *, host: str, name: str, protected: bool, has_choices: bool
) -> None:
    """Serve until SIGINT or SIGTERM; then answer the requests that have arrived, for `DRAIN_S`."""
    port = bound.getsockname()[1]
    with _refused(host, port):  # another server may have bound the address in the same instant
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.listen(BACKLOG)
    url = _url(host, port)
    to_stderr = logging.StreamHandler()
    to_stderr.addFilter(RateLimit())
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[to_stderr])
    if host not in LOOPBACK and not protected:
        print(
            f"grace: warning: everyone who reaches {host} can use the model; set --api-key, or "
            "listen on 127.0.0.1",
            file=sys.stderr,
        )
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: None)  # uvicorn raises it again when it stops
    print(f"serving {name} on {url} (page) and {url}/v1 (API); Ctrl-C ends it", flush=True)
    print(f"next:   {_example(url, name, protected, has_choices)}", flush=True)
    with bound:
        Server(app).run(sockets=[bound])


def leave() -> NoReturn:
    """End this process at once, after `serve`."""
    send_traces()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that holds an address; clients are refused there until `serve` listens."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with _refused(host, port):
        if not host:  # for a socket, all addresses
            raise OSError("the host is empty")
        # Without the name of the protocol, asyncio would not set TCP_NODELAY.
        bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            bound.bind((host, port))
            # With it, a second server could bind the address, too, until one of them listens.
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        except BaseException:
            bound.close()
            raise
    return bound


@contextlib.contextmanager
def _refused(host: str, port: int) -> Iterator[None]:
    """Turn the refusal of an address into one line."""
    try:
        yield
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"cannot listen on {host} port {port}: {reason}; choose others with --host and --port"
        ) from None


def _url(host: str, port: int) -> str:
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"


def _example(url: str, name: str, protected: bool, has_choices: bool) -> str:
    key = ' -H "Authorization: Bearer $GRACE_API_KEY"' if protected else ""
    options = {"budget": 8} | ({"choices": ["one option", "another"]} if has_choices else {})
    asked = {"messages": [{"role": "user", "content": "your question"}], "grace": options}
    body = shlex.quote(json.dumps({"model": name, **asked}, ensure_ascii=False))
    return f"curl {url}/v1/chat/completions{key} -H 'Content-Type: application/json' -d {body}"
