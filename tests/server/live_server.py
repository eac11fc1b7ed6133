"""A server on the loopback, in a thread of the tests."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import openai

from grace.model import Model
from grace.server import ServerSettings, create_app
from grace.server.running import Server, bind

NAME = "tiny"


@dataclass(frozen=True)
class Live:
    """A server that runs, and the model behind it; call the model only while nobody asks."""

    url: str
    model: Model
    app: Any

    def client(self, **options: Any) -> Any:
        """Return the official client."""
        options = {"api_key": "none", "max_retries": 0, "timeout": 60, **options}
        return openai.OpenAI(base_url=f"{self.url}/v1", **options)

    def ask(self, messages: Any, **options: Any) -> Any:
        """Return what the official client makes of a chat, of a stream all chunks."""
        with self.client() as client:
            options = {"temperature": 0, **options}
            answer = client.chat.completions.create(model=NAME, messages=messages, **options)
            return list(answer) if options.get("stream") else answer

    def send(self, path: str, body: Any = None, **headers: str) -> httpx2.Response:
        """Send bytes or JSON without any client of OpenAI's; without a body, get a page."""
        content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        head = {"Content-Type": "application/json"} if content is not None else {}
        method = "GET" if content is None else "POST"
        head |= headers
        return httpx2.request(method, self.url + path, content=content, headers=head, timeout=60)

    def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        """Return the status and the JSON of an answer."""
        answer = self.send(path, body, **headers)
        return answer.status_code, answer.json()

    def events(self, path: str, body: Any) -> list[Any]:
        """Return the events of a stream up to its [DONE], or the error in their place."""
        answer = self.send(path, body | {"stream": True})
        if answer.status_code != 200:
            return [answer.json()]
        *lines, end = answer.text.strip().split("\n\n")
        assert end == "data: [DONE]"
        return [json.loads(line.removeprefix("data: ")) for line in lines]


def until(condition: Callable[[], bool]) -> None:
    """Wait for what comes in milliseconds; give up after a minute."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


class Slow:
    """How often a slowed model was called."""

    calls = 0

    def rest(self) -> int:
        """Wait until the model is at rest; return how often it was called by then."""
        before = -1
        while self.calls != before:
            before = self.calls
            time.sleep(0.5)
        return before


@contextlib.contextmanager
def slowed(model: Model, seconds: float = 0.05) -> Iterator[Slow]:
    """Let every forward pass of a model take this much longer."""
    slow = Slow()

    def wait(*_: Any) -> None:
        slow.calls += 1
        time.sleep(seconds)

    hook = model.engine.model.register_forward_pre_hook(wait)
    try:
        yield slow
    finally:
        hook.remove()


@contextlib.contextmanager
def running(model: Model, path: Path, **settings: Any) -> Iterator[Live]:
    """Serve a model until the end of the block."""
    chosen = ServerSettings(name=NAME, **settings)
    app = create_app(model, chosen, path)
    listening = bind("127.0.0.1", 0)
    server = Server(app)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield Live(f"http://127.0.0.1:{listening.getsockname()[1]}", model, app)
    finally:
        server.should_exit = True
        thread.join()
        listening.close()
