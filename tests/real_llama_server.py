"""llama-server itself, where GRACE_LLAMA_SERVER names the program."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

EXACT = ["-ctk", "f32", "-ctv", "f32", "-fa", "off"]  # a cache in float32


@contextlib.contextmanager
def serving(file: Path) -> Iterator[SimpleNamespace]:
    """Run it with a GGUF file until the end of the block; it has a `url`."""
    program = os.environ["GRACE_LLAMA_SERVER"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [program, "-m", str(file), "--port", str(port), "-c", "1024", "-np", "4", *EXACT]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            url = f"http://127.0.0.1:{port}"
            _wait(url)
            yield SimpleNamespace(url=url)
        finally:
            server.terminate()


def _wait(url: str) -> None:
    for _ in range(600):
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            if urllib.request.urlopen(f"{url}/health").status == 200:
                return
        time.sleep(0.1)
    raise TimeoutError(url)
