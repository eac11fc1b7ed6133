"""Chromium without a window, driven over a pipe by the DevTools protocol."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)


class Browser:
    """One page in a fresh profile; `requests` are the addresses that it has asked for."""

    def __init__(self, profile: Path, *, dark: bool = False, width: int = 900) -> None:
        to_read, self._out = os.pipe()
        self._in, to_write = os.pipe()
        # Far above 3 and 4, where the protocol wants them: neither overwrites the other.
        pipes = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 100) for end in (to_read, to_write)]

        def place() -> None:
            for number, pipe in enumerate(pipes, start=3):
                os.dup2(pipe, number)

        command = [
            str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
            "--disable-dev-shm-usage", "--disable-background-networking", "--disable-sync",
            "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank",
        ]  # fmt: skip
        self._said = profile.with_name(f"{profile.name}.log")
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(
                command, preexec_fn=place, close_fds=False, stderr=said
            )
        for end in (to_read, to_write, *pipes):
            os.close(end)
        self._left, self._number, self._session = b"", 0, ""
        self.requests: list[str] = []
        self.errors: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")
        size = {"width": width, "height": 1200, "deviceScaleFactor": 1, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)

    def send(self, method: str, **params: Any) -> Any:
        """Send a command and return its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def open(self, url: str) -> None:
        """Open an address and wait until it is loaded."""
        self.send("Page.navigate", url=url)
        self.wait(f"location.href.startsWith({url!r}) && document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """Return the value of an expression on the page."""
        options = {"returnByValue": True, "awaitPromise": True}
        told = self.send("Runtime.evaluate", expression=script, **options)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def wait(self, condition: str, seconds: float = 60) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + seconds
        while not self.run(condition):
            assert time.monotonic() < end, f"never: {condition}"
            time.sleep(0.1)

    def type(self, text: str) -> None:
        """Write into what has the focus."""
        self.send("Input.insertText", text=text)

    def press(self, key: str, code: int) -> None:
        """Press a key."""
        text = {"text": "\r"} if key == "Enter" else {}
        keys = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.send("Input.dispatchKeyEvent", type="keyDown", **keys, **text)
        self.send("Input.dispatchKeyEvent", type="keyUp", **keys)

    def screenshot(self, file: Path) -> None:
        """Write a picture of the whole page."""
        told = self.send("Page.captureScreenshot", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(told["data"]))

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            part = os.read(self._in, 2**16)
            assert part, f"the browser has gone: {self._said.read_text()[-2000:]}"
            self._left += part
        line, _, self._left = self._left.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(message["params"]["request"]["url"])
        if message.get("method") == "Runtime.exceptionThrown":
            self.errors.append(str(message["params"]))
        if message.get("method") == "Log.entryAdded":
            self.errors.append(message["params"]["entry"]["text"])
        return message
