"""The HTTP API: OpenAI's chat, completions and models, and the operator's endpoints."""

from __future__ import annotations

import time
from dataclasses import dataclass

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST

from router.admission import shutting_down
from router.door import Door
from router.generation import Generation
from router.http.body import read_body
from router.http.chat import ChatAnswer
from router.http.completions import CompletionAnswer
from router.http.errors import error_response, install_error_handlers
from router.http.origin import OriginMiddleware
from router.http.reply import PlainReply, StreamReply
from router.http.schema import ChatBody, CompletionBody
from router.identifiers import echoed_request_id
from router.life.failures import no_pair_error
from router.limits import check_model
from router.observe.debug import add_debug


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """What the HTTP API needs to know besides the door."""

    max_body_bytes: int
    created: int
    """Unix time in seconds that models are listed with."""
    shows_requests: bool = False
    """Whether `/debug/requests` is here."""


def create_app(door: Door, settings: HttpSettings) -> FastAPI:
    """The application; it owns nothing and can be served by any ASGI server."""
    app = FastAPI(title="Tandem", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(OriginMiddleware)
    install_error_handlers(app)
    _add_completions(app, door, settings)
    _add_models(app, door, settings)
    _add_operations(app, door)
    if settings.shows_requests:
        add_debug(app, door.observer)
    return app


def _add_completions(app: FastAPI, door: Door, settings: HttpSettings) -> None:
    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        received = door.clock.now()
        body = await read_body(request, ChatBody, max_body_bytes=settings.max_body_bytes)
        generation = Generation(door, body.specs()[0], received)
        answer = ChatAnswer(body, generation, door.texts.tokenizer, int(time.time()))
        return _reply(answer, body.streams, request, generation)

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        received = door.clock.now()
        body = await read_body(request, CompletionBody, max_body_bytes=settings.max_body_bytes)
        generations = [Generation(door, spec, received) for spec in body.specs()]
        answer = CompletionAnswer(body, generations, door.texts.tokenizer, int(time.time()))
        return _reply(answer, body.streams, request, generations[0])


def _reply(
    answer: ChatAnswer | CompletionAnswer, stream: bool, request: Request, generation: Generation
) -> Response:
    client_id = request.headers.get("x-request-id")
    headers = {"x-request-id": echoed_request_id(client_id, generation.request_id)}
    if stream:
        return StreamReply(answer.frames(), headers)
    return PlainReply(answer.whole, headers)


def _add_models(app: FastAPI, door: Door, settings: HttpSettings) -> None:
    def model() -> dict[str, object]:
        return {
            "id": door.settings.model,
            "object": "model",
            "created": settings.created,
            "owned_by": "tandem",
            "max_model_len": door.settings.max_model_len,
        }

    @app.get("/v1/models")
    async def models() -> Response:
        return JSONResponse({"object": "list", "data": [model()]})

    @app.get("/v1/models/{name:path}")
    async def one_model(name: str) -> Response:
        check_model(name, door.settings.model)
        return JSONResponse(model())


def _add_operations(app: FastAPI, door: Door) -> None:
    """`/health` and `/live`: this process answers. `/ready`: a request would be served."""

    @app.get("/health")
    @app.get("/live")
    async def live() -> Response:
        return JSONResponse({"status": "ok"})

    @app.get("/ready")
    async def ready() -> Response:
        if door.admission.draining:
            return error_response(shutting_down())
        no_pair = door.fleet.readiness()
        if no_pair is None:
            return JSONResponse({"status": "ready"})
        return error_response(no_pair_error(no_pair))

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(door.metrics.render(), media_type=CONTENT_TYPE_LATEST)
