"""`grace serve` as a process."""

from __future__ import annotations

import contextlib
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from fake_upstream import Behaviour, Server
from forks import Command
from grace.cli import main
from grace.errors import ConfigError
from grace.server import ServerSettings
from grace.server.requests import ChatRequest
from grace.server.running import _example


@contextlib.contextmanager
def serving(start: Any, *words: str, lines: int) -> Iterator[tuple[Any, str, str]]:
    """Start a command that serves; give it, its address, and the first lines that it prints."""
    with start(*words, "--port", "0", "--name", "tiny") as server:
        said = "".join(server.stdout.readline() for _ in range(lines))
        found = re.search(r"http://127\.0\.0\.1:\d+", said)
        assert found, server.stderr.read()
        yield server, found.group(), said
        server.kill()


def in_a_new_python(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from grace.cli import main; main()", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ends_what_streams(server: Any, url: str, choices: int) -> str:
    """Assert that SIGTERM lets a stream end; return what the server said on standard error."""
    body = {"model": "tiny", "prompt": "a", "n": choices, "max_tokens": 12, "stream": True}
    body |= {"temperature": 2, "stream_options": {"include_usage": True}}
    with httpx2.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as stream:
        lines = stream.iter_lines()
        next(lines)
        server.send_signal(signal.SIGTERM)
        rest = "\n".join(lines)
    assert rest.rstrip().endswith("data: [DONE]")
    assert rest.count('"finish_reason": "') == choices
    assert server.wait(60) == 0
    return str(server.stderr.read())


def test_sigterm_ends_what_streams_and_exits_0(finished: Path) -> None:
    with serving(Command, "serve", str(finished / "run"), lines=2) as (server, url, said):
        assert f"next:   curl {url}/v1/chat/completions" in said
        assert ends_what_streams(server, url, 8) == ""


def test_a_proxy_loads_no_torch_says_what_failed_in_a_line_and_ends_what_streams(
    upstream: Server, finished: Path
) -> None:
    upstream.behaviour = Behaviour()
    words = ("proxy", str(finished / "run"), "--upstream", upstream.url)
    with serving(in_a_new_python, *words, lines=3) as (server, url, said):
        assert said.startswith("upstream: served on vLLM 0.32.0\n")
        body = {"model": "tiny", "prompt": "a"}
        upstream.behaviour.fails = "cut"
        assert httpx2.post(f"{url}/v1/completions", json=body, timeout=60).status_code == 502
        upstream.behaviour.fails, upstream.behaviour.step_s = "", 0.02
        maps = Path(f"/proc/{server.pid}/maps")
        assert not maps.exists() or "torch" not in maps.read_text()
        failed = ends_what_streams(server, url, 4)
    assert failed.startswith("upstream: the upstream broke off within an answer")
    assert failed.count("\n") == 1


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["run", "--upstream", "http://127.0.0.1:9"], "http://127.0.0.1:9: no answer"),
        (["run", "--upstream", "nowhere"], "is not a server address"),
        (["run", "--upstream", "http://127.0.0.1:port"], "is not a server address"),
        (["run", "--upstream", "http://127.0.0.1:99999"], "is not a server address"),
        (["run", "--upstream", "http://[::1"], "is not a server address"),
        (["run", "--upstream", "http://ü..x"], "is not a server address"),
        (["run", "--upstream", "URL", "--upstream-key", "schlüssel"], "outside ASCII"),
        (["run", "--upstream", "URL", "--upstream-key", "two\nlines"], "a line break"),
        (["nothing-there", "--upstream", "URL"], "does not exist"),
        (["model", "--upstream", "URL"], "has no <CNF>"),
        (["run", "--upstream", "URL", "--model", "other"], "does not have 'other'"),
        (["--upstream", "URL"], "there is no such directory here"),
    ],
)
def test_what_cannot_be_relayed_is_one_line(
    arguments: list[str],
    words: str,
    upstream: Server,
    finished: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    upstream.behaviour = Behaviour()
    monkeypatch.setattr("grace.cli.commands.serve.RETRIES", 0)
    monkeypatch.chdir(finished)
    given = [upstream.url if word == "URL" else word for word in arguments]
    with pytest.raises(SystemExit) as stopped:
        main(["proxy", *given, "--port", "0"])
    error = capsys.readouterr().err
    assert (stopped.value.code, error.count("\n")) == (2, 1)
    assert words in error


@pytest.mark.parametrize(
    "arguments", [["serve", "no-model"], ["proxy", "--upstream", "http://127.0.0.1:9"]]
)
def test_an_address_in_use_is_one_line_before_anything_is_loaded_or_asked(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SystemExit) as stopped:
            main([*arguments, "--port", str(port)])
    error = capsys.readouterr().err
    assert stopped.value.code == 2
    assert f"cannot listen on 127.0.0.1 port {port}: Address already in use" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["model"], "has no <CNF> token"),
        (["nothing-there"], "does not exist"),
        (["run", "--api-key", "schlüssel"], "outside ASCII"),
        (["run", "--api-key", "two\nlines"], "a line break"),
        (["run", "--api-key", "  "], "nothing but space"),
        (["run", "--api-key-file", "no-such-file"], "cannot be read: No such file"),
        (["run", "--api-key-file", "/dev/null"], "holds no key"),
        (["run", "--api-key-file", "/dev/null", "--api-key", "a"], "give one"),
        (["run", "--host", "not a host"], "cannot listen"),
        (["run", "--host", ""], "cannot listen"),
    ],
)
def test_what_cannot_be_served_is_one_line(
    arguments: list[str], words: str, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, *options = arguments
    with pytest.raises(SystemExit) as stopped:
        main(["serve", str(finished / path), "--port", "0", *options])
    error = capsys.readouterr().err
    assert (stopped.value.code, error.count("\n")) == (2, 1)
    assert words in error


@pytest.mark.parametrize("way", ["environment", "file", "option"])
def test_a_key_is_stripped_of_the_space_around_it(
    way: str, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: list[str] = []
    monkeypatch.setattr(
        "grace.cli.commands.serve._run", lambda _, __, settings, *___: keys.append(settings.api_key)
    )
    (tmp_path / "key").write_text("s3cret\n")
    options = {
        "file": ["--api-key-file", str(tmp_path / "key")],
        "option": ["--api-key", "s3cret "],
    }
    if way == "environment":
        monkeypatch.setenv("GRACE_API_KEY", " s3cret\r\n")
    with pytest.raises(SystemExit, match="0"):
        main(["serve", str(finished / "run"), "--port", "0", *options.get(way, [])])
    assert keys == ["s3cret"]


@pytest.mark.parametrize("name", ["qwen", "it's", 'a "b" $(c)'])
def test_the_example_can_be_pasted_whatever_the_model_is_called(name: str) -> None:
    url, made = "http://127.0.0.1:8000", []
    for has_choices in (False, True):
        command = shlex.split(_example(url, name, protected=False, has_choices=has_choices))
        made.append(ChatRequest.model_validate_json(command[-1]))
    assert [request.model for request in made] == [name, name]
    assert [len(request.grace.choices) for request in made if request.grace] == [0, 2]


def test_impossible_limits_are_refused() -> None:
    with pytest.raises(ConfigError, match="max_tokens is 0"):
        ServerSettings(max_tokens=0)
    with pytest.raises(ConfigError, match="timeout_s is 0"):
        ServerSettings(timeout_s=0)
