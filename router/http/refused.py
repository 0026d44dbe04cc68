"""Endpoints of OpenAI's that no model here could serve: refused by name, not as unknown paths."""

from __future__ import annotations

from fastapi import FastAPI, Response

from core.errors import BadRequestError
from router.door import Door

NO_MODEL_FOR = {
    "/v1/embeddings": "embeddings",
    "/v1/moderations": "moderations",
    "/v1/images/{rest:path}": "images",
    "/v1/audio/{rest:path}": "audio",
    "/v1/videos": "videos",
    "/v1/rerank": "rankings",
    "/v1/score": "scores",
}
"""Paths that are posted to > what they would bring."""


class UnsupportedEndpointError(BadRequestError):
    """The served model can't do what this endpoint is for."""

    code = "unsupported_endpoint"


class ResponseNotFoundError(BadRequestError):
    """Answers aren't kept."""

    code = "response_not_found"
    http_status = 404


def add_refused(app: FastAPI, door: Door) -> None:
    for path, what in NO_MODEL_FOR.items():
        _refuse(app, path, f"the model '{door.settings.model}' writes text and makes no {what}")

    @app.api_route("/v1/responses/{response_id:path}", methods=["DELETE", "GET"])
    async def stored_response(response_id: str) -> Response:
        raise ResponseNotFoundError(
            f"there is no response '{response_id[:64]}': answers are not stored here"
        )


def _refuse(app: FastAPI, path: str, why: str) -> None:
    @app.post(path)
    async def refuse() -> Response:
        raise UnsupportedEndpointError(why)
