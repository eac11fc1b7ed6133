"""Runs the application: its socket, signals, and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shlex
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

import uvicorn

from grace.errors import ConfigError
from grace.server.counters import send_traces

if TYPE_CHECKING:
    from fastapi import FastAPI

LOOPBACK = ("127.0.0.1", "::1", "localhost")
DRAIN_S = 5  # after a signal, to answer the requests that have arrived
TOLD_S = 2  # then, for the others to receive a 503
MOST_CONNECTIONS = 512  # more get a 503; leaves room in the usual limit of 1,024 open files


class Server(uvicorn.Server):
    """uvicorn's server, which tells whoever still waits when it stops."""

    def __init__(self, app: FastAPI) -> None:
        config = uvicorn.Config(
            app,
            http="h11",
            ws="none",
            log_level="warning",
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=MOST_CONNECTIONS,
            timeout_graceful_shutdown=DRAIN_S + TOLD_S,
        )
        super().__init__(config)
        self._end = app.state.end

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer the requests that have arrived, for `DRAIN_S`."""
        asyncio.get_running_loop().call_later(DRAIN_S, self._end)
        await super().shutdown(sockets)


def serve(
    app: FastAPI, bound: socket.socket, *, host: str, name: str, protected: bool, has_choices: bool
) -> None:
    """Serve until SIGINT or SIGTERM; then answer the requests that have arrived, for `DRAIN_S`."""
    port = bound.getsockname()[1]
    with _refused(host, port):  # another server may have bound the address in the same instant
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.listen()
    url = _url(host, port)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
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
