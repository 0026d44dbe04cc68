"""The HTTP API: OpenAI's chat, completions, responses and models, and the operator's endpoints."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import FastAPI, Request, Response
from starlette.middleware.cors import CORSMiddleware

from router.batch.batches import Batches
from router.door import Door
from router.generation import Generation
from router.http.answers import GENERATES, Answer
from router.http.batches import add_batches
from router.http.body import read_body
from router.http.body_room import BodyRoom
from router.http.calls import CallMiddleware
from router.http.documentation import add_documentation
from router.http.errors import error_event, install_error_handlers
from router.http.files import add_files
from router.http.operations import add_models, add_operations
from router.http.origin import OriginMiddleware
from router.http.refused import add_refused
from router.http.reply import PlainReply, StreamReply
from router.http.request_ids import HEADER, RequestIds
from router.http.responses import ResponsesAnswer
from router.http.tokenization import add_tokenization
from router.identifiers import client_request_id
from router.observe.debug import add_debug
from router.page.routes import add_page
from router.tenants.gatekeeper import Gatekeeper

LARGEST_BODIES = 16
"""There is room for so many of the largest bodies at once, or for more that are smaller."""

PREFLIGHT_S = 600
"""How long browsers may remember what a preflight said."""


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """What the HTTP API needs to know besides the door."""

    max_body_bytes: int
    created: int
    """Unix time in seconds that models are listed with."""
    cors_origins: tuple[str, ...] = ()
    """Whose web pages may call from a browser; `*` for all."""
    shows_requests: bool = False
    """Whether `/debug/requests` is here."""


def create_app(
    door: Door, settings: HttpSettings, gatekeeper: Gatekeeper, batches: Batches
) -> FastAPI:
    """The application; it owns nothing and can be served by any ASGI server."""
    app = FastAPI(
        title="Tandem",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        telemetry={"tracing": False, "metrics": False, "logs": False},  # the observer tells all
    )
    # The last that is added is the first that a request passes
    app.add_middleware(BodyRoom, max_bytes=LARGEST_BODIES * settings.max_body_bytes)
    app.add_middleware(CallMiddleware, gatekeeper=gatekeeper)
    app.add_middleware(OriginMiddleware)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=[HEADER, "retry-after"],
            max_age=PREFLIGHT_S,
        )
    app.add_middleware(RequestIds)
    install_error_handlers(app)
    for path in GENERATES:
        _add_generation(app, door, path, settings)
    add_files(app, batches)
    add_batches(app, batches, max_body_bytes=settings.max_body_bytes)
    add_tokenization(app, door, max_body_bytes=settings.max_body_bytes)
    add_models(app, door, created=settings.created)
    add_operations(app, door)
    if settings.shows_requests:
        add_debug(app, door.observer)
    add_refused(app, door)
    add_page(app, door, shows_requests=settings.shows_requests)
    add_documentation(app, model=door.settings.model)
    return app


def _add_generation(app: FastAPI, door: Door, path: str, settings: HttpSettings) -> None:
    kind, begin = GENERATES[path]

    async def generate(request: Request) -> Response:
        received = door.clock.now()
        body = await read_body(request, kind, max_body_bytes=settings.max_body_bytes)
        client_id = _client_id(request)
        answer, generation = begin(door, body, received, client_id)
        return _reply(answer, body.streams, client_id, generation)

    # A plain route: FastAPI's own looks for dependencies that there aren't, request by request.
    app.add_route(path, generate, methods=["POST"])


def _client_id(request: Request) -> str:
    return client_request_id(request.headers.get(HEADER))


def _reply(
    answer: Answer,
    stream: bool,
    client_id: str,
    generation: Generation,
) -> Response:
    headers = {HEADER: client_id or generation.request_id}
    if stream:
        on_error = answer.failed if isinstance(answer, ResponsesAnswer) else error_event
        return StreamReply(answer.frames(), headers, on_error=on_error)
    return PlainReply(answer.whole, headers)
