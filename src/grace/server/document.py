"""The OpenAPI document: what is answered, as a whole and in streams, and which key is needed."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from grace.server.schemas import ChatCompletionChunk, ErrorBody, TextCompletionChunk

REFERENCE = "#/components/schemas/{model}"
CHUNKS = (ChatCompletionChunk, TextCompletionChunk)
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody}
    for status in (400, 401, 404, 408, 413, 415, 421, 429, 500, 501, 502, 503, 504)
}


def answers(model: type[BaseModel], chunk: type[BaseModel] | None = None) -> dict[Any, Any]:
    """Return what an operation answers: an object, events if it streams, or an error."""
    found: dict[str, Any] = {"model": model}
    if chunk is not None:
        text = f"server-sent events; the data of each is a {chunk.__name__}, of the last [DONE]"
        schema = {
            "type": "string",
            "description": text,
            "contentMediaType": "application/json",
            "contentSchema": {"$ref": REFERENCE.format(model=chunk.__name__)},
        }
        found["content"] = {"text/event-stream": {"schema": schema}}
    return {200: found, **ERRORS}


def describe(app: FastAPI, *, protected: bool) -> None:
    """Complete the document of an application; `protected`: `/v1` needs a key."""
    plain = app.openapi

    def complete() -> dict[str, Any]:
        if app.openapi_schema is not None:
            return app.openapi_schema
        document = plain()
        parts = document["components"]
        for chunk in CHUNKS:
            schema = chunk.model_json_schema(mode="serialization", ref_template=REFERENCE)
            parts["schemas"] |= schema.pop("$defs", {}) | {chunk.__name__: schema}
        for name in ("HTTPValidationError", "ValidationError"):  # what is invalid is a 400 here
            parts["schemas"].pop(name, None)
        for operations in document["paths"].values():
            for operation in operations.values():
                operation["responses"].pop("422", None)
        if protected:
            parts["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
            for path, operations in document["paths"].items():
                for operation in operations.values() if path.startswith("/v1/") else ():
                    operation["security"] = [{"key": []}]
        return document

    app.openapi = complete  # type: ignore[method-assign]
