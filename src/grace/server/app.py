"""The application: its routes, its OpenAPI document, and errors in OpenAI's form."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from grace import __version__
from grace.errors import GraceError
from grace.records import to_json
from grace.report.stored import own_row
from grace.server.errors import ApiError, as_api_error, explain
from grace.server.guard import Guard
from grace.server.jobs.line import ClientGone
from grace.server.requests import ChatRequest, CompletionRequest, ScoreRequest
from grace.server.schemas import (
    ChatCompletion,
    ChatCompletionChunk,
    ErrorBody,
    Health,
    ModelCard,
    ModelList,
    Scores,
    TextCompletion,
    TextCompletionChunk,
)
from grace.server.service import Service
from grace.server.settings import ServerSettings

if TYPE_CHECKING:
    from grace.model import Model

REFERENCE = "#/components/schemas/{model}"
CHUNKS = (ChatCompletionChunk, TextCompletionChunk)
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody}
    for status in (400, 401, 404, 408, 413, 415, 421, 429, 500, 501, 502, 503, 504)
}


def answers(model: type[BaseModel], chunk: type[BaseModel] | None = None) -> dict[Any, Any]:
    """Return the responses of an operation: an object, events if it streams, or an error."""
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


MEASURED = ("task", "n", "accuracy", "ece", "brier", "auroc", "interval", "reliability")
PAGE = Path(__file__).parent / "page"
FILES = {
    "/": ("index.html", "text/html"),
    "/page/style.css": ("style.css", "text/css"),
    "/page/app.js": ("app.js", "text/javascript"),
    "/page/diagram.js": ("diagram.js", "text/javascript"),
    "/page/promise.js": ("promise.js", "text/javascript"),
    "/page/trace.js": ("trace.js", "text/javascript"),
    "/page/icon.svg": ("icon.svg", "image/svg+xml"),
}
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def about(model: Model, path: Path, most_tokens: int) -> dict[str, Any]:
    """Return the further fields of `/v1/models`; `path` is what was loaded, a run if possible."""
    row, engine = own_row(path), model.engine
    return {
        "created": int(path.stat().st_mtime) if path.exists() else 0,
        "task": model.task.name,
        "kind": model.task.kind,
        "read_at": engine.read_at,
        "evidence": engine.evidence is not None,
        "max_tokens": min(model.sample.longest, most_tokens),
        "threshold": to_json(model.promise) if model.promise else None,
        "measured": {key: row[key] for key in MEASURED if key in row} if row else None,
    }


def create_app(
    model: Model, settings: ServerSettings | None = None, about: Mapping[str, Any] | None = None
) -> FastAPI:
    """Return the ASGI application that serves a model.

    `app.state.end()` answers all that wait with 503, for when there is no time left.

    Args:
        model: from `grace.load`; from now on only the application calls it.
        settings: limits, name and API key.
        about: what `/v1/models` tells of the model besides, from `grace.server.about`.
    """
    settings = settings or ServerSettings()
    service = Service(model, settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.line.close()

    app = FastAPI(
        title="GrACE",
        version=__version__,
        description="An OpenAI-compatible API whose every choice carries a confidence.",
        docs_url=None,  # they load scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
    )
    _add_api(app, service)
    _add_watching(app, service)
    _add_models(app, settings, dict(about or {}))
    _add_page(app)
    _add_errors(app)
    paths = {getattr(route, "path", "") for route in app.routes}
    app.state.end = service.line.end
    app.add_middleware(Guard, settings=settings, counters=service.counters, paths=paths)
    describe(app, protected=bool(settings.api_key))
    return app


def _add_api(app: FastAPI, service: Service) -> None:
    @app.post("/v1/chat/completions", responses=answers(ChatCompletion, ChatCompletionChunk))
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        """Answer a conversation; every choice has a `confidence`."""
        return await service.chat(body, request)

    @app.post("/v1/completions", responses=answers(TextCompletion, TextCompletionChunk))
    async def completions(body: CompletionRequest, request: Request) -> Response:
        """Continue text; every choice has a `confidence`."""
        return await service.complete(body, request)

    @app.post("/v1/score", responses=answers(Scores))
    async def score(body: ScoreRequest, request: Request) -> Response:
        """Return the confidence of responses that one already has."""
        return await service.score(body, request)


def _add_watching(app: FastAPI, service: Service) -> None:
    @app.get("/health", response_model=Health, responses={503: ERRORS[503]})
    async def health() -> dict[str, Any]:
        """Say that the process works, and how many requests wait; restart it if this fails."""
        if not service.backend.queue.alive:
            raise ApiError(503, "a thread of the model has died; restart the server", code="dead")
        return {"status": "ok", "waiting": len(service.backend.queue.waiting)}

    @app.get("/ready", response_model=Health, responses={503: ERRORS[503]})
    async def ready() -> dict[str, Any]:
        """Say that requests are answered: the model computes, or the upstream is there."""
        if trouble := await service.backend.trouble():
            raise ApiError(503, f"not ready: {trouble}", code="not_ready")
        return {"status": "ok", "waiting": len(service.backend.queue.waiting)}

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Return counters for Prometheus."""
        return Response(
            service.counters.text(), media_type="text/plain; version=0.0.4; charset=utf-8"
        )


def _add_models(app: FastAPI, settings: ServerSettings, about: dict[str, Any]) -> None:
    created = int(about.pop("created", 0))
    card = {"id": settings.name, "object": "model", "created": created, "owned_by": "grace"}
    card |= {"grace": about}

    @app.get("/v1/models", response_model=ModelList, responses={401: ERRORS[401]})
    async def models() -> dict[str, Any]:
        """List the one model, with what its run has measured."""
        return {"object": "list", "data": [card]}

    errors: dict[int | str, dict[str, Any]] = {401: ERRORS[401], 404: ERRORS[404]}

    @app.get("/v1/models/{model:path}", response_model=ModelCard, responses=errors)
    async def one_model(model: str) -> dict[str, Any]:
        """Describe a model."""
        if model != settings.name:
            raise ApiError(404, f"model {model!r} is not here", code="model_not_found")
        return card


def _add_page(app: FastAPI) -> None:
    def serve(name: str, kind: str) -> Callable[[], Awaitable[Response]]:
        content = (PAGE / name).read_bytes()

        async def file() -> Response:
            return Response(content, media_type=kind, headers=PAGE_HEADERS)

        return file

    for path, (name, kind) in FILES.items():
        app.add_api_route(path, serve(name, kind), methods=["GET"], include_in_schema=False)


def _add_errors(app: FastAPI) -> None:
    async def failed(_: Request, error: Exception) -> Response:
        told = as_api_error(error)
        return JSONResponse(told.body, told.status, headers=told.headers)

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return await failed(request, explain(error))

    async def missing(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        told = ApiError(error.status_code, f"{request.method} {request.url.path}: {error.detail}")
        answer = await failed(request, told)
        if allowed := (error.headers or {}).get("Allow"):
            answer.headers["Allow"] = allowed.replace("GET", "GET, HEAD")
        return answer

    async def gone(_: Request, error: Exception) -> Response:
        return Response(status_code=499)

    app.add_exception_handler(ApiError, failed)
    app.add_exception_handler(GraceError, failed)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, missing)
    app.add_exception_handler(ClientGone, gone)
    app.add_exception_handler(Exception, failed)
