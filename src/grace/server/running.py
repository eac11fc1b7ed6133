"""Running the application: a socket, signals, and what is said at the start."""

from __future__ import annotations

import signal
import socket
import sys
import threading
from typing import TYPE_CHECKING

import uvicorn

from grace.errors import ConfigError

if TYPE_CHECKING:
    from fastapi import FastAPI

LOOPBACK = ("127.0.0.1", "::1", "localhost")
DRAIN_S = 30


def serve(app: FastAPI, *, host: str, port: int, name: str, protected: bool) -> None:
    """Serve until SIGINT or SIGTERM; what is being answered then is answered first.

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
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=DRAIN_S,
    )
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
        uvicorn.Server(config).run(sockets=[listening])


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
