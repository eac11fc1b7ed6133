"""Which clients can use a running server: chat, records, and the confidence of both.

    grace serve runs/qwen
    python bench/clients.py http://127.0.0.1:8000

Makes a Markdown table, with a line for each client that is installed; the others are named below.
A client works if it gets the confidence that the server gives without any client.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, Field

ASKED = "Who wrote Middlemarch?"
KEY = "none"


class Person(BaseModel):
    """The author of a book."""

    name: str = Field(max_length=40)
    kind: Literal["writer", "painter", "other"]


SCHEMA = {"name": "person", "schema": Person.model_json_schema()}
FORMAT = {"type": "json_schema", "json_schema": SCHEMA}
Told = tuple[Any, float | None]  # a text or a record, and its c


class Client(NamedTuple):
    """A client; `ask` yields a text or, with `record`, one record for each way to get one."""

    name: str
    package: str
    where: str  # c is
    ask: Callable[[str, str, bool], Iterator[Told]]


def turns() -> list[Any]:
    """Return the conversation anew, since some clients write into it."""
    return [{"role": "user", "content": ASKED}]


def confidence(tokens: Any) -> float | None:
    """Return c from the log-probabilities of an answer's tokens, None if it has none."""
    last = [dict(one) for one in dict(tokens[-1])["top_logprobs"]]
    return math.exp(last[-1]["logprob"]) if last and last[-1]["token"] == "<CNF>" else None


def openai(url: str, model: str, record: bool) -> Iterator[Told]:
    from openai import pydantic_function_tool

    chat: Any = _openai(url).chat.completions
    asked = {"model": model, "messages": turns(), "temperature": 0}
    if not record:
        (choice,) = chat.create(**asked).choices
        yield choice.message.content, choice.confidence
        return
    (choice,) = chat.parse(**asked, response_format=Person).choices
    yield choice.message.parsed, choice.confidence
    tools = [pydantic_function_tool(Person)]
    (choice,) = chat.parse(**asked, tools=tools, tool_choice="required").choices
    yield choice.message.tool_calls[0].function.parsed_arguments, choice.confidence


def openai_stream(url: str, model: str, record: bool) -> Iterator[Told]:
    options: Any = {"response_format": Person} if record else {}
    asked = {"model": model, "messages": turns(), "temperature": 0, "logprobs": True} | options
    with _openai(url).chat.completions.stream(**asked) as stream:
        (choice,) = stream.get_final_completion().choices
    message = choice.message
    yield message.parsed if record else message.content, confidence(choice.logprobs.content)


def openai_responses(url: str, model: str, record: bool) -> Iterator[Told]:
    asked = {"model": model, "input": ASKED, "temperature": 0}
    responses = _openai(url).responses
    answer = responses.parse(**asked, text_format=Person) if record else responses.create(**asked)
    yield answer.output_parsed if record else answer.output_text, answer.output[0].confidence


def _openai(url: str) -> Any:
    from openai import OpenAI

    return OpenAI(base_url=url, api_key=KEY)


def instructor(url: str, model: str, record: bool) -> Iterator[Told]:
    if not record:  # its chat is openai's
        yield from openai(url, model, record)
        return
    from instructor import Mode, from_openai

    for mode in (Mode.TOOLS, Mode.JSON_SCHEMA):
        person, answer = from_openai(_openai(url), mode=mode).create_with_completion(
            model=model, messages=turns(), temperature=0, response_model=Person
        )
        yield person, answer.choices[0].confidence


def litellm(url: str, model: str, record: bool) -> Iterator[Told]:
    from litellm import completion

    options: Any = {"response_format": Person} if record else {}
    options |= {"api_base": url, "api_key": KEY, "temperature": 0}
    (choice,) = completion(f"openai/{model}", messages=turns(), **options).choices
    yield _read(choice.message.content, record), choice.provider_specific_fields["confidence"]


def llama_index(url: str, model: str, record: bool) -> Iterator[Told]:
    from llama_index.core.llms import ChatMessage
    from llama_index.llms.openai_like import OpenAILike

    llm = OpenAILike(model=model, api_base=url, api_key=KEY, is_chat_model=True, temperature=0)
    options = {"response_format": FORMAT} if record else {}
    reply = llm.chat([ChatMessage(role="user", content=ASKED)], **options)
    yield _read(reply.message.content, record), reply.raw.choices[0].confidence


def langchain(url: str, model: str, record: bool) -> Iterator[Told]:
    from langchain_openai import ChatOpenAI

    llm = ChatOpenAI(base_url=url, api_key=KEY, model=model, temperature=0, logprobs=True)  # type: ignore[arg-type]
    if not record:
        message = llm.invoke(ASKED)
        yield message.content, confidence(message.response_metadata["logprobs"]["content"])
        return
    for method in ("json_schema", "function_calling"):
        answer = llm.with_structured_output(Person, method=method, include_raw=True).invoke(ASKED)
        yield answer["parsed"], confidence(answer["raw"].response_metadata["logprobs"]["content"])


def pydantic_ai(url: str, model: str, record: bool) -> Iterator[Told]:
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    named = OpenAIChatModel(model, provider=OpenAIProvider(base_url=url, api_key=KEY))
    settings: Any = {"temperature": 0.0, "openai_logprobs": True}
    outputs: list[Any] = [Person, NativeOutput(Person)] if record else [str]
    for output in outputs:
        run = Agent(named, output_type=output, model_settings=settings).run_sync(ASKED)
        yield run.output, confidence((run.response.provider_details or {})["logprobs"])


def dspy(url: str, model: str, record: bool) -> Iterator[Told]:
    from dspy import LM

    lm = LM(f"openai/{model}", api_base=url, api_key=KEY, temperature=0, cache=False)
    (answer,) = lm(ASKED, logprobs=True, **({"response_format": FORMAT} if record else {}))
    yield _read(answer["text"], record), confidence(answer["logprobs"]["content"])


def _read(text: str, record: bool) -> Any:
    return Person.model_validate_json(text) if record else text


CHOICE, TOKENS = "`choices[0].confidence`", "log-probabilities"
CLIENTS = (
    Client("openai", "openai", CHOICE, openai),
    Client("openai, `.stream()`", "openai", TOKENS, openai_stream),
    Client("openai, `.responses`", "openai", "`output[0].confidence`", openai_responses),
    Client("instructor", "instructor", CHOICE, instructor),
    Client("litellm", "litellm", "`choices[0].provider_specific_fields`", litellm),
    Client("llama-index", "llama-index-llms-openai-like", f"{CHOICE} of `raw`", llama_index),
    Client("langchain", "langchain-openai", TOKENS, langchain),
    Client("pydantic-ai", "pydantic-ai-slim", TOKENS, pydantic_ai),
    Client("dspy", "dspy", TOKENS, dspy),
)


def without_client(url: str, model: str, **options: Any) -> float:
    """Return c as the server gives it."""
    body = {"model": model, "messages": turns(), "temperature": 0, **options}
    head = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    sent = urllib.request.Request(f"{url}/chat/completions", json.dumps(body).encode(), head)
    with urllib.request.urlopen(sent) as answer:
        return float(json.load(answer)["choices"][0]["confidence"])


def tried(told: Iterator[Told], kind: type, wanted: float) -> str:
    """Return whether all that a client tells is right, and what is not."""
    try:
        for value, c in told:
            near = c is not None and math.isclose(c, wanted, rel_tol=1e-5)
            if not isinstance(value, kind) or not near:
                return f"fails: {value!r}, confidence {c}, not {wanted}"
    except Exception as error:  # whatever a client raises is its line in the table
        first = str(error).strip().splitlines()[:1] or [""]
        return f"fails: {type(error).__name__} {first[0][:120]}"
    return "works"


def lines(url: str) -> Iterator[str]:
    """Try all clients and yield the lines of the table."""
    base = f"{url.rstrip('/')}/v1"
    with urllib.request.urlopen(f"{base}/models") as answer:
        model = json.load(answer)["data"][0]["id"]
    of_text = without_client(base, model)
    of_record = without_client(base, model, response_format=FORMAT)
    yield "| client | version | chat | records | the confidence |"
    yield "|---|---|---|---|---|"
    missing = []
    for one in CLIENTS:
        try:
            version = importlib.metadata.version(one.package)
        except importlib.metadata.PackageNotFoundError:
            missing.append(one.package)
            continue
        text = tried(one.ask(base, model, False), str, of_text)
        record = tried(one.ask(base, model, True), Person, of_record)
        yield f"| {one.name} | {version} | {text} | {record} | {one.where} |"
    if missing:
        yield f"not installed, so not tried: {', '.join(missing)}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:8000", help="of the server")
    for line in lines(parser.parse_args().url):
        print(line, flush=True)
