"""/openapi.json, and /docs: a page of our own that shows it, without anything from elsewhere."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI, Response
from fastapi.responses import HTMLResponse, JSONResponse

from router.http.openapi import openapi_document
from router.http.operations import READ

PAGE = Path(__file__).with_name("docs.html")
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
)
"""The page may ask this server, and nobody else."""


def add_documentation(app: FastAPI, *, model: str) -> None:
    document, page = openapi_document(model), PAGE.read_text()

    @app.api_route("/openapi.json", methods=READ)
    async def openapi() -> Response:
        return JSONResponse(document)

    @app.api_route("/docs", methods=READ)
    async def docs() -> Response:
        return HTMLResponse(page, headers={"content-security-policy": POLICY})
