"""A server on the loopback that speaks vLLM's dialect of the completions API, with a tiny model.

It ends a sample at one token and knows nothing of GrACE: an independent reading of the same
logits. It can be told to fail in the ways that servers do.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch

from grace.engines.reading import Reader
from grace.engines.structured import Allowed, Form, Forms

MODEL = "served"


@dataclass
class Behaviour:
    """What the server does; change it between requests."""

    version: str | None = "0.32.0"
    lists_ids: bool = True
    names_ids: bool = True  # token ids beside and in place of texts
    processed: bool = False  # log-probabilities after the temperature
    raw_logits: bool = False
    parent: str | None = None  # of a LoRA
    root: str = "/somewhere"
    context: int | None = 256
    max_chunk: int = 1  # steps per event of a stream
    step_s: float = 0.0
    busy: int = 0  # requests that are answered 503 before one is answered
    retry_after: str = "0"
    fails: str = ""  # see `Handler._fail`
    after: int = 1  # events of a stream before it fails
    gate: threading.Event | None = None  # no step is made before it is set
    requests: list[dict[str, Any]] = field(default_factory=list)
    left: int = 0  # answers whose client hung up


class Server(ThreadingHTTPServer):
    """The server with its model."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, model: Any, tokenizer: Any, eos: list[int], handler: Any = None) -> None:
        super().__init__(("127.0.0.1", 0), handler or Handler)
        self.model, self.tokenizer, self.eos = model, tokenizer, eos
        self.behaviour = Behaviour()
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def logits(self, ids: list[int]) -> torch.Tensor:
        with self.lock, torch.inference_mode():
            found: torch.Tensor = self.model(torch.tensor([ids])).logits[0].float()
            return found

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


@contextlib.contextmanager
def serving(model: Any, tokenizer: Any, eos: list[int], handler: Any = None) -> Iterator[Server]:
    """Run a server until the end of the block; `handler` answers, as vLLM does if not named."""
    server = Server(model, tokenizer, eos, handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _allowed(server: Server, body: dict[str, Any]) -> Allowed | None:
    if "response_format" not in body:
        return None
    form = Form(body["response_format"]["json_schema"]["schema"])
    return Forms(server.tokenizer, Reader(None, tuple(server.eos))).compile(form)


class Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    protocol_version = "HTTP/1.1"
    lists_biased = False  # a logit bias changes the log-probabilities
    server: Server

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        behaviour = self.server.behaviour
        if behaviour.fails == "down":
            self._error(503, "no engine")
        elif self.path == "/version" and behaviour.version:
            self._json({"version": behaviour.version})
        elif self.path == "/v1/models":
            card = {"id": MODEL, "object": "model", "root": behaviour.root}
            card |= {"parent": behaviour.parent, "max_model_len": behaviour.context}
            cards = [card]
            if behaviour.parent:
                base = {**card, "id": behaviour.parent, "parent": None}
                cards = [base, {**card, "max_model_len": None}]
            self._json({"object": "list", "data": cards})
        else:
            self._error(404, "Not Found")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if isinstance(body["prompt"], str):
            special = body.get("add_special_tokens", True)
            body["prompt"] = self.server.tokenizer.encode(
                body["prompt"], add_special_tokens=special
            )
        behaviour = self.server.behaviour
        behaviour.requests.append(body)
        try:
            self._answer(body, behaviour)
        except OSError:
            behaviour.left += 1
            self.close_connection = True

    def _answer(self, body: dict[str, Any], behaviour: Behaviour) -> None:
        if behaviour.busy > 0:
            behaviour.busy -= 1
            self._error(503, "overloaded", {"retry-after": behaviour.retry_after})
        elif body["model"] != MODEL:
            self._error(404, f"The model `{body['model']}` does not exist.")
        elif not 0 <= body["temperature"] <= 2:
            self._error(400, f"temperature must be in [0, 2], got {body['temperature']}.")
        elif behaviour.context and len(body["prompt"]) + body["max_tokens"] > behaviour.context:
            self._error(400, f"This model's maximum context length is {behaviour.context} tokens.")
        elif not all(i < len(self.server.tokenizer) for i in body.get("logprob_token_ids", ())):
            self._error(400, "token_id(s) in logprob_token_ids contain out-of-vocab token ids.")
        elif len(body.get("logprob_token_ids", ())) > 128:
            self._error(400, "Requested logprob_token_ids, which is greater than max allowed: 128")
        elif behaviour.parent and body.get("prompt_logprobs") is not None:
            self._error(500, "EngineCore encountered an issue")  # and is dead, really
        elif behaviour.fails == "500":
            self._error(500, "EngineCore encountered an issue")
        elif behaviour.fails == "413":
            self._error(413, "Request Entity Too Large")
        elif behaviour.fails == "html":
            self._send(200, b"<html>sign in</html>", {"content-type": "text/html"})
        elif body.get("stream") and behaviour.fails != "json":
            self._stream(body, behaviour)
        else:
            self._whole(body, behaviour)

    def _whole(self, body: dict[str, Any], behaviour: Behaviour) -> None:
        choice: dict[str, Any] = {"index": 0, "text": "", "finish_reason": None}
        parts = []
        for part in self._parts(body, behaviour):
            self._check_listener()
            parts.append(part)
        listed = [part.pop("logprobs") for part in parts]
        choice["logprobs"] = {
            name: [entry for one in listed for entry in one[name]] for name in listed[0]
        }
        if behaviour.names_ids:
            choice["token_ids"] = [i for part in parts for i in part["token_ids"]]
            choice["text"] = self.server.tokenizer.decode(
                choice["token_ids"], skip_special_tokens=True
            )
        choice["finish_reason"] = parts[-1]["finish_reason"]
        if body.get("prompt_logprobs") is not None:
            choice["prompt_logprobs"] = self._prompt_logprobs(body["prompt"])
        if behaviour.fails == "malformed":
            self._send(200, b'{"choices": [{"te')
        elif behaviour.fails == "empty":
            self._json({"choices": []})
        elif behaviour.fails == "abort":
            self._json({"choices": [{**choice, "finish_reason": "abort"}]})
        else:
            self._json({"object": "text_completion", "choices": [choice], "usage": {}})

    def _stream(self, body: dict[str, Any], behaviour: Behaviour) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        self.wfile.write(b": keep-alive\n\n")
        for number, part in enumerate(self._parts(body, behaviour)):
            if behaviour.fails not in ("", "forgets") and number == behaviour.after:
                if behaviour.fails == "malformed":
                    self.wfile.write(b'data: {"choi\n\n')
                if behaviour.fails == "error":
                    self._event({"error": {"message": "the engine is dead", "code": 500}})
                if behaviour.fails == "ends":
                    self.wfile.write(b"data: [DONE]\n\n")
                return
            self._event({"object": "text_completion", "choices": [{"index": 0, **part}]})
        self._event({"object": "text_completion", "choices": [], "usage": {}})
        self.wfile.write(b"data: [DONE]\n\n")

    def _parts(self, body: dict[str, Any], behaviour: Behaviour) -> Iterator[dict[str, Any]]:
        """Yield groups of steps as parts of a choice."""
        steps: list[Any] = []
        for step in self._steps(body, behaviour):
            if behaviour.gate is not None:
                behaviour.gate.wait(60)
            time.sleep(behaviour.step_s)
            steps.append(step)
            if len(steps) == behaviour.max_chunk or step[-1]:
                ids, values, tops, reasons = map(list, zip(*steps, strict=True))
                name = self._name(behaviour, body)
                logprobs = {
                    "tokens": [name(i) for i in ids],
                    "token_logprobs": values,
                    "top_logprobs": [{name(i): v for i, v in top.items()} for top in tops],
                    "text_offset": [0] * len(ids),
                }
                part = {"text": "", "logprobs": logprobs, "finish_reason": reasons[-1]}
                if behaviour.names_ids:
                    part["token_ids"] = ids
                yield part
                steps = []

    def _steps(self, body: dict[str, Any], behaviour: Behaviour) -> Iterator[Any]:
        """Yield (token, its log-probability, those listed, why it ends) like vLLM's sampler."""
        context, stops = list(body["prompt"]), {*self.server.eos, *body.get("stop_token_ids", ())}
        temperature = body["temperature"]
        draws = torch.Generator().manual_seed(body.get("seed") or 0)
        longest = body["max_tokens"]
        allowed = _allowed(self.server, body)
        for number in range(longest):
            logits = self.server.logits(context)[-1]
            if allowed is not None:  # nothing else is listed with a probability
                logits = logits.clone()
                logits[~torch.from_numpy(allowed.next(len(logits)))] = -1e4
            biased = logits.clone()
            for token, bias in (body.get("logit_bias") or {}).items():
                biased[int(token)] += bias
            token = int(biased.argmax())
            if temperature > 0:
                probs = (biased / temperature).softmax(-1)
                token = int(torch.multinomial(probs, 1, generator=draws))
            shown = biased if self.lists_biased else logits
            shown = shown / temperature if behaviour.processed and temperature > 0 else shown
            logprobs = shown if behaviour.raw_logits else shown.log_softmax(-1)
            top = {token: float(logprobs[token])}
            if behaviour.lists_ids and body.get("logprob_token_ids"):
                if not (behaviour.fails == "forgets" and number == behaviour.after):
                    top |= {i: float(logprobs[i]) for i in body["logprob_token_ids"]}
            else:
                values, ids = logprobs.topk(min(body["logprobs"], 20))
                top |= dict(zip(ids.tolist(), values.tolist(), strict=True))
            context.append(token)
            if allowed is not None:
                allowed.take(token)
            last = "length" if number == longest - 1 else None
            reason = "stop" if token in stops else last
            yield token, top[token], top, reason
            if reason:
                return

    def _prompt_logprobs(self, prompt: list[int]) -> list[Any]:
        logprobs = self.server.logits(prompt).log_softmax(-1)
        rows = [
            {str(i): {"logprob": float(row[i]), "rank": 1, "decoded_token": ""}}
            for i, row in zip(prompt[1:], logprobs, strict=False)
        ]
        return [None, *rows]

    def _name(self, behaviour: Behaviour, body: dict[str, Any]) -> Any:
        if behaviour.names_ids and body.get("return_tokens_as_token_ids"):
            return lambda token: f"token_id:{token}"
        return lambda token: self.server.tokenizer.decode([token])

    def _check_listener(self) -> None:
        """Notice a client that has hung up."""
        self.connection.setblocking(False)
        try:
            gone = self.connection.recv(1, 2) == b""  # MSG_PEEK
        except BlockingIOError:
            gone = False
        finally:
            self.connection.setblocking(True)
        if gone:
            raise ConnectionResetError

    def _event(self, value: Any) -> None:
        self.wfile.write(f"data: {json.dumps(value, ensure_ascii=False)}\n\n".encode())

    def _error(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        error = {"message": message, "type": "Error", "param": None, "code": status}
        self._send(status, json.dumps({"error": error}).encode(), headers)

    def _json(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode())

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        head = {"content-type": "application/json", "content-length": str(len(body))}
        for name, value in {**head, **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
