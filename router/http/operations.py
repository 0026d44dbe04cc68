"""What operators and clients ask beside generating: health, version, metrics, models, cancel."""

from __future__ import annotations

from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST

from core.release import RELEASE
from router.admission import shutting_down
from router.door import Door
from router.http.errors import error_response
from router.life.failures import no_pair_error
from router.limits import check_model
from router.tenants.call import current_call

READ = ["GET", "HEAD"]


def add_models(app: FastAPI, door: Door, *, created: int) -> None:
    """The served model, listed with the Unix time `created` in seconds."""

    def model() -> dict[str, object]:
        return {
            "id": door.settings.model,
            "object": "model",
            "created": created,
            "owned_by": "tandem",
            "max_model_len": door.settings.max_model_len,
        }

    @app.api_route("/v1/models", methods=READ)
    async def models() -> Response:
        return JSONResponse({"object": "list", "data": [model()]})

    @app.api_route("/v1/models/{name:path}", methods=READ)
    async def one_model(name: str) -> Response:
        check_model(name, door.settings.model)
        return JSONResponse(model())


def add_operations(app: FastAPI, door: Door) -> None:
    """`/health` and `/live`: this process answers. `/ready`: a request would be served."""

    @app.api_route("/health", methods=READ)
    @app.api_route("/live", methods=READ)
    async def live() -> Response:
        return JSONResponse({"status": "ok"})

    @app.api_route("/ready", methods=READ)
    async def ready() -> Response:
        if door.admission.draining:
            return error_response(shutting_down())
        no_pair = door.fleet.readiness()
        if no_pair is None:
            return JSONResponse({"status": "ready"})
        return error_response(no_pair_error(no_pair))

    @app.api_route("/metrics", methods=READ)
    async def metrics() -> Response:
        return Response(door.metrics.render(), media_type=CONTENT_TYPE_LATEST)

    @app.api_route("/version", methods=READ)
    async def version() -> Response:
        return JSONResponse({"version": RELEASE})

    @app.post("/v1/requests/{request_id:path}/cancel")
    async def cancel(request_id: str) -> Response:
        own_id = door.running.cancel(current_call().tenant, request_id)
        return JSONResponse({"id": own_id, "object": "request", "status": "cancelled"})
