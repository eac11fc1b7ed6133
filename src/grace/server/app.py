"""The web application: routes, static page, and errors in OpenAI's format."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from grace import __version__
from grace.errors import GraceError
from grace.model.rules import usual_strategy
from grace.records import to_json
from grace.report import own_row
from grace.server.errors import ApiError, as_api_error
from grace.server.guard import Guard
from grace.server.jobs.backends import ClientGone
from grace.server.requests import ChatRequest, CompletionRequest, ScoreRequest
from grace.server.responding import ResponseEvent, ResponseObject, ResponsesRequest
from grace.server.schemas import (
    ERRORS,
    CompletionChunk,
    CompletionObject,
    Health,
    ModelCard,
    ModelList,
    Scores,
    complete_document,
    responses,
)
from grace.server.service import Service
from grace.server.settings import ServerSettings
from grace.store import RunDir, is_run

if TYPE_CHECKING:
    from grace.model import Model

EXAMPLES = 3  # questions that the page offers
MEASURED = ("task", "n", "accuracy", "ece", "brier", "auroc", "interval", "reliability")
PAGE = Path(__file__).parent / "page"
PAGE_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def create_app(model: Model, settings: ServerSettings, path: Path) -> FastAPI:
    """Return the ASGI application; `app.state.end()` answers all that wait with 503."""
    service = Service(model, settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await service.close()

    app = FastAPI(
        title="GrACE",
        version=__version__,
        description="An OpenAI-compatible API with a confidence on every choice.",
        docs_url=None,  # these pages load scripts from a CDN
        redoc_url=None,
        lifespan=lifespan,
    )
    _add_api(app, service)
    _add_monitoring(app, service)
    _add_models(app, service, _card(model, settings, path))
    _add_page(app)
    _add_errors(app)
    app.state.end = service.backend.end
    app.add_middleware(Guard, settings=settings, counters=service.counters)
    complete_document(
        app, protected=bool(settings.api_key), events=[CompletionChunk, ResponseEvent]
    )
    return app


# The docstrings of the routes below are their descriptions in the OpenAPI document.


def _add_api(app: FastAPI, service: Service) -> None:
    @app.post("/v1/chat/completions", responses=responses(CompletionObject, CompletionChunk))
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        """Answer a conversation; every choice has a `confidence`."""
        return await service.chat(body, request)

    @app.post("/v1/responses", responses=responses(ResponseObject, ResponseEvent))
    async def respond(body: ResponsesRequest, request: Request) -> Response:
        """Answer a text or a conversation; the output item has a `confidence`."""
        return await service.respond(body, request)

    @app.post("/v1/completions", responses=responses(CompletionObject, CompletionChunk))
    async def completions(body: CompletionRequest, request: Request) -> Response:
        """Continue text; every choice has a `confidence`."""
        return await service.complete(body, request)

    @app.post("/v1/score", responses=responses(Scores))
    async def score(body: ScoreRequest, request: Request) -> Response:
        """Return the confidence of responses that you already have."""
        return await service.score(body, request)


def _add_monitoring(app: FastAPI, service: Service) -> None:
    queue = service.backend.queue

    @app.get("/health", response_model=Health, responses={503: ERRORS[503]})
    async def health() -> dict[str, Any]:
        """Report that the process works; restart it if this fails."""
        if not queue.alive:
            raise ApiError(503, "a thread of the model has died; restart the server", code="dead")
        return {"status": "ok", "waiting": len(queue.waiting)}

    @app.get("/ready", response_model=Health, responses={503: ERRORS[503]})
    async def ready() -> dict[str, Any]:
        """Report that requests are answered: the model computes, or the upstream is reachable."""
        if trouble := await service.backend.trouble():
            raise ApiError(503, f"not ready: {trouble}", code="not_ready")
        return {"status": "ok", "waiting": len(queue.waiting)}

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Return counters for Prometheus."""
        return Response(
            service.counters.text(), media_type="text/plain; version=0.0.4; charset=utf-8"
        )


def _card(model: Model, settings: ServerSettings, path: Path) -> dict[str, Any]:
    """Return the model's entry in `/v1/models`."""
    row, engine, promise = own_row(path), model.engine, model.promise
    if settings.max_tokens < model.sample.longest:  # then every answer has another limit
        promise = None
    return {
        "id": settings.name,
        "object": "model",
        "created": int(path.stat().st_mtime) if path.exists() else 0,
        "owned_by": "grace",
        "grace": {
            "task": row["task"] if row else model.task.name,
            "kind": model.task.kind,
            "read_at": engine.read_at,
            "evidence": engine.evidence is not None,
            "max_tokens": min(model.sample.longest, settings.max_tokens),
            "strategy": usual_strategy(model.promise, model.fitted),
            "threshold": to_json(promise) if promise else None,
            "examples": _examples(path),
            "measured": {key: row[key] for key in MEASURED if key in row} if row else None,
        },
    }


def _examples(path: Path) -> list[dict[str, Any]]:
    """Return a few questions of the run's test set, for the page; an export has none."""
    table = RunDir(path).split("test").questions
    if not is_run(path) or not table.path.exists():
        return []
    alone = (question for question in table.read() if not question.messages)
    return [
        {"question": one.text, "choices": list(one.choices)}
        for one in itertools.islice(alone, EXAMPLES)
    ]


def _add_models(app: FastAPI, service: Service, card: dict[str, Any]) -> None:
    @app.get("/v1/models", response_model=ModelList, responses={401: ERRORS[401]})
    async def models() -> dict[str, Any]:
        """List the one model, with its measured calibration."""
        return {"object": "list", "data": [card]}

    errors: dict[int | str, dict[str, Any]] = {401: ERRORS[401], 404: ERRORS[404]}

    @app.get("/v1/models/{model:path}", response_model=ModelCard, responses=errors)
    async def one_model(model: str) -> dict[str, Any]:
        """Describe a model."""
        service.check_model(model)
        return card


def _add_page(app: FastAPI) -> None:
    def serve(file: Path) -> Callable[[], Awaitable[Response]]:
        content, kind = file.read_bytes(), PAGE_TYPES[file.suffix]

        async def answer() -> Response:
            return Response(content, media_type=kind, headers=PAGE_HEADERS)

        return answer

    for file in PAGE.iterdir():
        if file.suffix in PAGE_TYPES:
            path = "/" if file.name == "index.html" else f"/page/{file.name}"
            app.add_api_route(path, serve(file), methods=["GET"], include_in_schema=False)


def _add_errors(app: FastAPI) -> None:
    async def failed(_: Request, error: Exception) -> Response:
        shown = as_api_error(error)
        return JSONResponse(shown.body, shown.status, headers=shown.headers)

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        text = f"{request.method} {request.url.path}: {error.detail}"
        if error.status_code == 404:
            text += "; the API is below /v1, and /openapi.json lists its paths"
        elif error.status_code == 400:
            text += "; send JSON in UTF-8, without deep nesting or very long numbers"
        answer = await failed(request, ApiError(error.status_code, text))
        if allowed := (error.headers or {}).get("Allow"):
            answer.headers["Allow"] = allowed.replace("GET", "GET, HEAD")
        return answer

    async def gone(_: Request, error: Exception) -> Response:
        return Response(status_code=499)

    for kind in (ApiError, GraceError, RequestValidationError):
        app.add_exception_handler(kind, failed)
    app.add_exception_handler(HTTPException, refused)
    app.add_exception_handler(ClientGone, gone)
