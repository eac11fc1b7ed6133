"""A vLLM server gives the transformers engine's tokens and its c: `make vllm`."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from alike import assert_alike
from grace.engines import Sampling
from grace.records import is_whole

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]
GREEDY = Sampling(max_new_tokens=24)
SAMPLED = Sampling(4, 0.8, max_new_tokens=60, seed=7)
CLOSE = 1e-4
FORMS = [(head, form) for head in ("tied", "untied") for form in ("merged", "vllm-lora")]
FORMS.append(("pair", "merged"))
START_S = 600
OPTIONS = ("--dtype", "float32", "--enforce-eager", "--max-model-len", "256", "--max-num-seqs", "8")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    import vllm_models

    return vllm_models.write_all(tmp_path_factory)


@pytest.fixture(scope="module", params=FORMS, ids=["-".join(case) for case in FORMS])
def both(request: Any, trained: dict[str, Path], tmp_path_factory: Any) -> Iterator[Any]:
    """A server with an export, and transformers with the adapter as it was trained."""
    from grace.engines.openai import OpenAIEngine
    from grace.engines.transformers import TransformersEngine

    head, form = request.param
    folder = trained[head]
    model = ["--model", str(folder / "merged")]
    if form == "vllm-lora":
        model = ["--model", str(folder / "base"), "--enable-lora", "--max-lora-rank", "8"]
        model += ["--lora-modules", f"lora={folder / form}"]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("log") / "server.log"
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *model, *OPTIONS]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    settings = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with (
        log.open("w") as out,
        subprocess.Popen(
            command, env={**os.environ, **settings}, stdout=out, stderr=subprocess.STDOUT
        ) as server,
    ):
        url = f"http://127.0.0.1:{port}"
        try:
            _wait(url, server, log)
            engine = OpenAIEngine(url, folder / form)
            yield engine, TransformersEngine.load(folder / "base", adapter=folder / "adapter")
            engine.close()
        finally:
            server.terminate()


def _wait(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end and server.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    raise AssertionError(log.read_text()[-4000:])


def test_the_server_says_what_it_can(both: Any) -> None:
    engine, _ = both
    assert engine.served.context == 256
    assert engine.served.version


@pytest.mark.parametrize("stream", [False, True])
def test_greedy_answers_are_the_same_tokens_with_the_same_c(both: Any, stream: bool) -> None:
    import vllm_models

    engine, reference = both
    prompts, found = vllm_models.prompts(), {}
    for index, prompt in enumerate(prompts):
        if stream:
            ((_, found[index]),) = engine.stream(prompt, GREEDY).start(range(1))
        else:
            ((_, (found[index],)),) = engine.generate([prompt], GREEDY)
    for index, (b,) in reference.generate(prompts, GREEDY):
        assert_alike(found[index], b, CLOSE)
    assert sum(a.finish_reason == "stop" for a in found.values()) > 2


@pytest.mark.parametrize("stream", [False, True])
def test_sampled_answers_have_the_c_that_transformers_reads(
    both: Any, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import vllm_models
    from grace.engines.http import remote

    engine, reference = both
    last, plain = [], remote.read_steps

    def noted(*args: Any, **options: Any) -> Any:
        steps = plain(*args, **options)
        last.extend(step.token for step in steps if step.ends)
        return steps

    monkeypatch.setattr(remote, "read_steps", noted)
    prompts = vllm_models.prompts()
    if stream:
        made = {i: dict(engine.stream(p, SAMPLED).start(range(4))) for i, p in enumerate(prompts)}
        rows = [(prompts[i], g) for i in made for g in made[i].values()]
    else:
        rows = [(prompts[i], g) for i, all_of in engine.generate(prompts, SAMPLED) for g in all_of]
    assert len({g.token_ids for _, g in rows}) > len(prompts)
    ended = [(p, g) for p, g in rows if is_whole(g)]
    assert len(ended) > 5
    read = set(engine.reader.readout.ids) - set(engine.reader.banned)
    assert set(last) >= {3, *read}  # some ended on EOS, some on <CNF>
    contexts, responses = [p for p, _ in ended], [g.token_ids for _, g in ended]
    wanted = reference.confidences(contexts, responses)
    assert [g.confidence for _, g in ended] == pytest.approx(wanted, abs=CLOSE)
    assert engine.confidences(contexts, responses) == pytest.approx(wanted, abs=CLOSE)
    for (logprobs, end), g in zip(
        reference.logprobs(contexts, responses), (g for _, g in ended), strict=True
    ):
        assert g.logprobs == pytest.approx(logprobs, abs=CLOSE)
        assert g.end_logprob == pytest.approx(end, abs=CLOSE)
    for found, expected in zip(
        engine.logprobs(contexts, responses), reference.logprobs(contexts, responses), strict=True
    ):
        assert found[0] == pytest.approx(expected[0], abs=CLOSE)
        assert found[1] == pytest.approx(expected[1], abs=CLOSE)


def test_a_proxy_in_front_gives_the_same(both: Any) -> None:
    from starlette.testclient import TestClient

    from grace.model import described
    from grace.server import ServerSettings, create_app

    engine, reference = both
    card = {"data": {"task": "trivia_qa", "prompt": "short"}, "sample": {"max_new_tokens": 24}}
    relayed, local = (described(e, Path(), Path(), card) for e in (engine, reference))
    app = create_app(relayed, ServerSettings(name="it"), Path())
    with TestClient(app, base_url="http://127.0.0.1") as client:
        for number in range(4):
            question = f"What is {number} and {number * 7}?"
            asked = {"model": "it", "messages": [{"role": "user", "content": question}]}
            once = {**asked, "grace": {"budget": 1}}
            (choice,) = client.post("/v1/chat/completions", json=once).json()["choices"]
            reply = local.ask(question)
            assert choice["message"]["content"].strip() == reply.text
            assert choice["confidence"] == pytest.approx(reply.confidence, abs=CLOSE)
            vote = {**asked, "grace": {"budget": 4, "strategy": "grace-sc", "parallel": 4}}
            said = client.post("/v1/chat/completions", json=vote).json()
            assert len(said["grace"]["votes"]) == 4
            items = [{"question": question, "response": v["text"]} for v in said["grace"]["votes"]]
            rated = client.post("/v1/score", json={"model": "it", "input": items}).json()["data"]
            wanted = local.score([question] * 4, [item["response"] for item in items])
            assert [row["confidence"] for row in rated] == pytest.approx(wanted, abs=CLOSE)
            lines = client.post("/v1/chat/completions", json={**once, "stream": True}).text
            assert lines.endswith("data: [DONE]\n\n")
            assert "error" not in lines
