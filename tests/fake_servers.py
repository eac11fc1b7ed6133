"""llama-server and SGLang as their sources answer, made up, with a tiny model behind them."""

from __future__ import annotations

import json
from typing import Any

import torch

from fake_upstream import MODEL, Behaviour, Handler

LOWEST = -3.4028234663852886e38  # what llama-server has for the log of 0


class LlamaServer(Handler):
    """`/completion` of llama-server (July 2026): its sampling does not change what it lists.

    `Behaviour.fails`: `speculative` lists nothing but zeros, `truncates` half of the vocabulary,
    `underflow` a pair of improbable tokens. Older ones do not name their context among the models.
    """

    names_context = True
    slots: Any = 4

    def do_GET(self) -> None:
        rows = self.server.model.config.vocab_size
        if self.path == "/v1/models":
            context = self.server.behaviour.context if self.names_context else None
            meta = {"n_vocab": rows, "n_ctx": context}
            card = {"id": MODEL, "object": "model", "owned_by": "llamacpp", "meta": meta}
            self._json({"object": "list", "data": [card]})
        elif self.path == "/props":
            slot = {"n_ctx": self.server.behaviour.context}
            props = {"model_path": self.server.behaviour.root, "total_slots": self.slots}
            self._json({**props, "default_generation_settings": slot})
        else:
            self._error(404, "File Not Found")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        behaviour = self.server.behaviour
        behaviour.requests.append(body)
        if self.path != "/completion":
            self._error(404, "File Not Found")
        elif behaviour.fails == "500":
            self._error(500, "llama_decode failed")
        elif len(body["prompt"]) >= (behaviour.context or 256):
            self._error(400, "the request exceeds the available context size")
        else:
            self._json(self._completion(body, behaviour))

    def _completion(self, body: dict[str, Any], behaviour: Behaviour) -> dict[str, Any]:
        logits = self.server.logits(body["prompt"])[-1].clone()
        biased = logits.clone()
        for token, bias in body["logit_bias"]:
            biased[token] += bias
        if behaviour.fails == "underflow":
            logits[-2:] = -1e4
        token, probs = int(biased.argmax()), logits.softmax(-1)
        logprobs = [max(value, LOWEST) for value in probs.log().tolist()]
        order = torch.argsort(logits, descending=True).tolist()[: body["n_probs"]]
        order = order[: len(order) // 2] if behaviour.fails == "truncates" else order
        top = [{"id": i, "token": "", "bytes": [], "logprob": logprobs[i]} for i in order]
        step = {"id": token, "token": "", "bytes": [], "logprob": logprobs[token]}
        if behaviour.fails == "speculative":
            step["logprob"], top = 0.0, []
        listed = [] if self._cut(token) else [{**step, "top_logprobs": top}]
        return {"content": "", "tokens": [], "stop": True, "completion_probabilities": listed}

    def _cut(self, token: int) -> bool:
        """Return whether the text ends within a character: of such a step nothing is listed."""
        try:
            self.server.tokenizer.decode([token]).encode("utf-8")
        except UnicodeEncodeError:
            return True
        return "\ufffd" in self.server.tokenizer.decode([token])


class SGLang(Handler):
    """`/generate` of SGLang 0.5; a bias changes what it lists.

    `Behaviour.processed`: SGLANG_RETURN_ORIGINAL_LOGPROB is not set. `Behaviour.fails`: `forgets`
    lists no named ids from a step on, `speculative` says that it decodes speculatively.
    """

    lists_biased = True

    def do_GET(self) -> None:
        behaviour = self.server.behaviour
        if self.path == "/v1/models":
            card = {"id": MODEL, "object": "model", "owned_by": "sglang", "root": behaviour.root}
            card |= {"parent": None, "max_model_len": behaviour.context}
            self._json({"object": "list", "data": [card]})
        elif self.path == "/get_server_info":
            kind = "EAGLE" if behaviour.fails == "speculative" else None
            self._json({"speculative_algorithm": kind, "version": "0.5.9"})
        else:
            self._error(404, "Not Found")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        behaviour, drawn = self.server.behaviour, body["sampling_params"]
        behaviour.requests.append(body)
        known = {
            "max_new_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty",
            "presence_penalty", "frequency_penalty", "stop_token_ids", "sampling_seed",
            "logit_bias", "json_schema",
        }  # fmt: skip
        if self.path != "/generate" or not set(drawn) <= known:
            self._error(400, f"unexpected {sorted(set(drawn) - known)}")
            return
        as_vllm = {
            "prompt": body["input_ids"], "max_tokens": drawn["max_new_tokens"],
            "temperature": drawn["temperature"], "stop_token_ids": drawn["stop_token_ids"],
            "seed": drawn.get("sampling_seed"), "logprob_token_ids": body["token_ids_logprob"],
            "logprobs": 1, "logit_bias": drawn.get("logit_bias"),
        }  # fmt: skip
        if "json_schema" in drawn:
            schema = {"schema": json.loads(drawn["json_schema"])}
            as_vllm["response_format"] = {"type": "json_schema", "json_schema": schema}
        try:
            self._generate(body, as_vllm, behaviour)
        except OSError:
            behaviour.left += 1
            self.close_connection = True

    def _generate(
        self, body: dict[str, Any], as_vllm: dict[str, Any], behaviour: Behaviour
    ) -> None:
        """Answer whole, or in parts that repeat what came before, as SGLang's do."""
        if body["stream"]:
            self.send_response(200)
            self.send_header("content-type", "text/event-stream; charset=utf-8")
            self.send_header("connection", "close")
            self.end_headers()
            self.close_connection = True
        drawn, listed, answer = [], [], {}
        for token, value, top, reason in self._steps(as_vllm, behaviour):
            drawn.append([value, token, None])
            listed.append([[top[i], i, None] for i in as_vllm["logprob_token_ids"] if i in top])
            ends = {"stop": {"type": "stop", "matched": token}, "length": {"type": "length"}}
            answer = {
                "text": "",
                "output_ids": [token for _, token, _ in drawn],
                "meta_info": {
                    "finish_reason": ends.get(reason),
                    "completion_tokens": len(drawn),
                    "output_token_logprobs": list(drawn),
                    "output_token_ids_logprobs": list(listed),
                },
            }
            if body["stream"]:
                self._event(answer)
        if body["stream"]:
            self.wfile.write(b"data: [DONE]\n\n")
        else:
            self._json(answer)


class Ollama(Handler):
    """What Ollama says of its models."""

    def do_GET(self) -> None:
        card = {"id": MODEL, "object": "model", "owned_by": "library"}
        self._json({"object": "list", "data": [card]})
