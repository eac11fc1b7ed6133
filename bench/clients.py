"""Which clients can use a running server: chat, its confidence, and structured answers.

    grace serve runs/qwen
    python bench/clients.py http://127.0.0.1:8000

Makes a Markdown table, with a line for each client that is installed; the others are named below.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import math
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, Field

ASKED = "Who wrote Middlemarch?"
KEY = "none"


class Person(BaseModel):
    """The author of a book."""

    name: str = Field(max_length=40)
    kind: Literal["writer", "painter", "other"]


class Tried(NamedTuple):
    """One client: how chat, c and a record come out of it; a record comes with its c, if it can."""

    package: str
    chat: Callable[[str, str], tuple[str, float | None]]
    record: Callable[[str, str], tuple[Any, float | None]]


def last_logprob(content: Any) -> float | None:
    """Return c from the log-probabilities of an answer, where unknown fields are dropped."""
    entry = content[-1]
    top = entry["top_logprobs"] if isinstance(entry, dict) else entry.top_logprobs
    one = top[-1]
    return math.exp(one["logprob"] if isinstance(one, dict) else one.logprob)


def openai_chat(url: str, model: str) -> tuple[str, float | None]:
    from openai import OpenAI

    with OpenAI(base_url=url, api_key=KEY) as client:
        answer = client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": ASKED}], temperature=0
        )
    return answer.choices[0].message.content or "", answer.choices[0].confidence  # type: ignore[attr-defined]


def openai_record(url: str, model: str) -> tuple[Any, float | None]:
    from openai import OpenAI

    with OpenAI(base_url=url, api_key=KEY) as client:
        answer = client.chat.completions.parse(
            model=model,
            messages=[{"role": "user", "content": ASKED}],
            temperature=0,
            response_format=Person,
        )
    return answer.choices[0].message.parsed, answer.choices[0].confidence  # type: ignore[attr-defined]


def langchain_chat(url: str, model: str) -> tuple[str, float | None]:
    from langchain_openai import ChatOpenAI

    llm = ChatOpenAI(base_url=url, api_key=KEY, model=model, temperature=0, logprobs=True)  # type: ignore[arg-type]
    answer = llm.invoke(ASKED)
    return str(answer.content), last_logprob(answer.response_metadata["logprobs"]["content"])


def langchain_record(url: str, model: str) -> tuple[Any, float | None]:
    from langchain_openai import ChatOpenAI

    found = []
    for method in ("json_schema", "function_calling"):
        llm = ChatOpenAI(base_url=url, api_key=KEY, model=model, temperature=0, logprobs=True)  # type: ignore[arg-type]
        asked = llm.with_structured_output(Person, method=method, include_raw=True)
        answer = asked.invoke(ASKED)
        found.append((answer["parsed"], answer["raw"].response_metadata["logprobs"]["content"]))
    assert all(isinstance(parsed, Person) for parsed, _ in found)
    return found[0][0], last_logprob(found[0][1])


def instructor_chat(url: str, model: str) -> tuple[str, float | None]:
    return openai_chat(url, model)  # it has no chat of its own


def instructor_record(url: str, model: str) -> tuple[Any, float | None]:
    import instructor
    from openai import OpenAI

    with OpenAI(base_url=url, api_key=KEY) as plain:
        for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
            client = instructor.from_openai(plain, mode=mode)
            parsed, raw = client.chat.completions.create_with_completion(
                model=model,
                messages=[{"role": "user", "content": ASKED}],
                temperature=0,
                response_model=Person,
            )
            assert isinstance(parsed, Person), mode
    return parsed, raw.choices[0].confidence


def pydantic_ai_chat(url: str, model: str) -> tuple[str, float | None]:
    run = _agent(url, model, str).run_sync(ASKED)
    return run.output, _pydantic_ai_c(run)


def pydantic_ai_record(url: str, model: str) -> tuple[Any, float | None]:
    from pydantic_ai import NativeOutput

    run = _agent(url, model, Person).run_sync(ASKED)  # as the arguments of a function
    native = _agent(url, model, NativeOutput(Person)).run_sync(ASKED)
    assert isinstance(native.output, Person)
    return run.output, _pydantic_ai_c(native)


def _agent(url: str, model: str, output: Any) -> Any:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    named = OpenAIChatModel(model, provider=OpenAIProvider(base_url=url, api_key=KEY))
    settings = {"temperature": 0.0, "openai_logprobs": True}
    return Agent(named, output_type=output, model_settings=settings)


def _pydantic_ai_c(run: Any) -> float | None:
    details = run.all_messages()[-1].provider_details or {}
    return last_logprob(details["logprobs"]) if details.get("logprobs") else None


def litellm_chat(url: str, model: str) -> tuple[str, float | None]:
    answer = _litellm(url, model)
    return answer.choices[0].message.content, last_logprob(answer.choices[0].logprobs.content)


def litellm_record(url: str, model: str) -> tuple[Any, float | None]:
    answer = _litellm(url, model, response_format=Person)
    parsed = Person.model_validate_json(answer.choices[0].message.content)
    return parsed, last_logprob(answer.choices[0].logprobs.content)


def _litellm(url: str, model: str, **options: Any) -> Any:
    import litellm

    messages = [{"role": "user", "content": ASKED}]
    options |= {"api_base": url, "api_key": KEY, "messages": messages, "temperature": 0}
    return litellm.completion(f"openai/{model}", logprobs=True, **options)


CLIENTS = (
    Tried("openai", openai_chat, openai_record),
    Tried("langchain-openai", langchain_chat, langchain_record),
    Tried("instructor", instructor_chat, instructor_record),
    Tried("pydantic-ai-slim", pydantic_ai_chat, pydantic_ai_record),
    Tried("litellm", litellm_chat, litellm_record),
)


def lines(url: str) -> Iterator[str]:
    """Try all clients and yield the lines of the table."""
    from openai import OpenAI

    base = f"{url.rstrip('/')}/v1"
    with OpenAI(base_url=base, api_key=KEY) as client:
        model = client.models.list().data[0].id
    yield "| client | version | chat | confidence | record | its confidence |"
    yield "|---|---|---|---|---|---|"
    missing = []
    for client_ in CLIENTS:
        try:
            version = importlib.metadata.version(client_.package)
        except importlib.metadata.PackageNotFoundError:
            missing.append(client_.package)
            continue
        cells = [client_.package, version]
        for work, kind in ((client_.chat, str), (client_.record, Person)):
            try:
                value, c = work(base, model)
            except Exception as error:  # whatever a client raises is its line in the table
                first = str(error).strip().splitlines()[:1] or [""]
                cells += [f"fails: {type(error).__name__} {first[0][:120]}", "-"]
                continue
            cells += ["works" if isinstance(value, kind) else f"fails: {value!r}"]
            cells += ["-" if c is None else "reachable"]
        yield f"| {' | '.join(cells)} |"
    if missing:
        yield f"not installed, so not tried: {', '.join(missing)}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:8000", help="of the server")
    for line in lines(parser.parse_args().url):
        print(line, flush=True)
