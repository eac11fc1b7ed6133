"""Test a server before it is used, and refuse it if the confidences would be wrong."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from grace.cnf import CNF_TOKEN
from grace.engines.http.llama_server import LlamaServer
from grace.engines.http.remote import LEEWAY, NO_LOGPROB, Identity, Remote, Served
from grace.engines.http.sglang import SGLang
from grace.engines.http.upstream import Json, Upstream, UpstreamError, parsing
from grace.engines.reading import Reader, Step
from grace.errors import ModelError

TEMPERATURES = (0.0, 0.25, 2.0)  # servers accept no more than 2
KINDS: dict[str, type[Remote]] = {"llamacpp": LlamaServer, "sglang": SGLang}  # by `owned_by`


async def probe(
    upstream: Upstream, reader: Reader, tokenizer: Any, card: Json, model: str | None = None
) -> Remote:
    """Return the model on a server of any software, after three test requests."""
    described = await model_of(upstream, model, card)
    kind = KINDS.get(str(described.get("owned_by")), Remote)
    context = described.get("max_model_len")
    served = Served(
        described["id"],
        context=context if isinstance(context, int) else None,
        version=await _version(upstream) if kind is Remote else "",
        lora=bool(described.get("parent")),
        root=str(described.get("root") or ""),
        rows=described.get("n_vocab", 0),
    )
    remote = kind(upstream, tokenizer, reader, served)
    if served.rows and any(token >= served.rows for token in reader.requested):
        raise ModelError(_no_row(reader, f"it has {served.rows}"))
    if kind is SGLang:
        await _refuse_speculation(upstream)
    prompt = [tokenizer.bos_token_id or reader.eos[0]]
    try:
        steps = [await remote.first(prompt, temperature) for temperature in TEMPERATURES]
    except UpstreamError as error:
        raise _explained(error, reader, remote.remedy) from None
    except ValueError:
        raise ModelError(
            f"{upstream.url} generated no token where one was asked for; check the server's log"
        ) from None
    if not all(set(reader.requested) <= step.listed.keys() for step in steps):
        ran = f"vLLM {served.version}" if served.version else "a server"
        raise ModelError(
            f"{upstream.url} is {ran} that lists the most probable tokens only, and not "
            f"{CNF_TOKEN}; use vLLM 0.26 or later, which lists any token (logprob_token_ids)"
        )
    _check_raw(steps, len(tokenizer), remote.remedy)
    return replace(remote, identity=Identity(prompt, steps[0], time.monotonic()))


async def _refuse_speculation(upstream: Upstream) -> None:
    """Refuse an SGLang that decodes speculatively, whose log-probabilities are not the model's."""
    info = await upstream.json("/get_server_info")
    if info.get("speculative_algorithm"):
        raise ModelError(
            f"{upstream.url} decodes speculatively, so its log-probabilities are not those of the "
            "model; start it without --speculative-algorithm"
        )


async def _version(upstream: Upstream) -> str:
    """Return vLLM's version, empty if the server names none."""
    try:
        answer = await upstream.json("/version")
    except UpstreamError as error:
        if error.why in ("unreachable", "busy"):
            raise
        return ""
    return str(answer.get("version", ""))


async def model_of(upstream: Upstream, name: str | None, card: Json) -> Json:
    """Return a server's description of a model, or of the only one that fits grace.json."""
    models = (await upstream.json("/v1/models")).get("data")
    if not isinstance(models, list) or not all(isinstance(m, dict) and "id" in m for m in models):
        raise UpstreamError(f"{upstream.url}/v1/models lists no models", "malformed")
    adapters = [model for model in models if model.get("parent")]
    lora = card.get("format") == "vllm-lora"
    fitting = adapters if lora and adapters else models
    if name is not None:
        fitting = [model for model in models if str(model["id"]) == str(name)]
    if len(fitting) != 1:
        have = ", ".join(str(model["id"]) for model in models) or "none"
        which = f"does not have {name!r}" if name is not None else "has several models"
        raise ModelError(f"{upstream.url} {which}; name one of its models (--model): {have}")
    found: Json = fitting[0]
    if found.get("owned_by") == "library":
        raise ModelError(
            f"{upstream.url} is Ollama, which lists the 20 most probable tokens at most, so the "
            f"probability of {CNF_TOKEN} cannot be read; serve the file with llama-server"
        )
    if found.get("owned_by") == "grace":
        raise ModelError(
            f"{upstream.url} is `grace serve` or `grace proxy`, whose answers already come with "
            "their confidence; ask it with any OpenAI client"
        )
    if found.get("owned_by") == "llamacpp":
        return found | await _of_llama_server(upstream, found)
    if lora and "parent" in found and not found["parent"]:
        raise ModelError(
            f"{upstream.url} serves {found['id']!r} without its LoRA, and so without {CNF_TOKEN}; "
            f"start it with --enable-lora --lora-modules NAME=DIR and use --model NAME"
        )
    # vLLM names the context of the base model, not that of its LoRAs.
    longest = next((m["max_model_len"] for m in models if m.get("max_model_len")), None)
    return found | {"max_model_len": found.get("max_model_len") or longest}


async def _of_llama_server(upstream: Upstream, found: Json) -> Json:
    """Return llama-server's description with vLLM's keys; its slots limit the connections."""
    meta, props = found.get("meta") or {}, await upstream.json("/props")
    with parsing("the upstream describes its model in another form than llama-server's"):
        file = str(props.get("model_path") or "")
        upstream.at_most(int(props.get("total_slots") or 1))
        slot = props.get("default_generation_settings") or {}
        return {
            "max_model_len": meta.get("n_ctx") or slot.get("n_ctx"),
            "n_vocab": int(meta.get("n_vocab") or 0),
            "root": str(Path(file).parent) if Path(file).is_file() else "",
        }


def _check_raw(steps: list[Step], vocabulary: int, remedy: str) -> None:
    """Refuse steps whose numbers are no log-probabilities at temperature 1."""
    greedy, *others = steps
    if not -math.log(vocabulary) - LEEWAY <= greedy.logprob <= 1e-3:
        raise ModelError(
            f"the server's most probable token has log-probability {greedy.logprob:.3f}, so these "
            f"are no log-probabilities; {remedy}"
        )
    for other in others:
        for token in greedy.logprobs.keys() & other.logprobs.keys():
            here, there = greedy.logprobs[token], other.logprobs[token]
            if abs(here - there) > LEEWAY + 0.02 * abs(here):
                raise ModelError(
                    f"the server's log-probability of token {token} is {here:.3f} at one "
                    f"temperature and {there:.3f} at another, so no confidence can be read; "
                    f"{remedy}"
                )


def _explained(error: UpstreamError, reader: Reader, remedy: str) -> Exception:
    if error.message == NO_LOGPROB:
        return ModelError(
            f"the server returns numbers that are no log-probabilities ({error.detail}); {remedy}"
        )
    if error.why != "invalid" or "vocab" not in str(error):
        return error
    return ModelError(_no_row(reader, str(error)))


def _no_row(reader: Reader, why: str) -> str:
    return (
        f"the server's model has no row for {CNF_TOKEN} (id {reader.cnf}): {why}; serve what "
        "`grace export` wrote"
    )
