"""/v1/batches: files of requests that are answered in what online traffic leaves."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from core.errors import BadRequestError
from router.batch.batches import Batches, BatchOrder, batch_json
from router.batch.library import checked_ttl
from router.http.body import read_body
from router.http.strict import Named, Strict
from router.tenants.call import current_call

DEFAULT_LIMIT, MAX_LIMIT = 20, 100


class ExpiresAfter(Strict):
    anchor: str
    seconds: int


class BatchBody(Strict):
    """POST /v1/batches."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: Named[str] | None = None
    output_expires_after: ExpiresAfter | None = None

    def order(self) -> BatchOrder:
        """Raises BadRequestError."""
        ttl, param = self.output_expires_after, "output_expires_after"
        return BatchOrder(
            endpoint=self.endpoint,
            input_file_id=self.input_file_id,
            completion_window=self.completion_window,
            metadata=self.metadata,
            output_ttl_s=None if ttl is None else checked_ttl(ttl.anchor, ttl.seconds, param),
        )


def add_batches(app: FastAPI, batches: Batches, *, max_body_bytes: int) -> None:
    @app.post("/v1/batches")
    async def create(request: Request) -> Response:
        body = await read_body(request, BatchBody, max_body_bytes=max_body_bytes)
        record = await batches.create(current_call().tenant, body.order())
        return JSONResponse(batch_json(record))

    @app.get("/v1/batches")
    async def page(request: Request) -> Response:
        query = request.query_params
        limit = limit_of(query.get("limit"), default=DEFAULT_LIMIT, most=MAX_LIMIT)
        found, has_more = await batches.page(
            current_call().tenant, after=query.get("after"), limit=limit
        )
        shown = [batch_json(record) for record in found]
        return JSONResponse(listed(shown, has_more=has_more))

    @app.get("/v1/batches/{batch_id}")
    async def one_batch(batch_id: str) -> Response:
        return JSONResponse(batch_json(await batches.get(current_call().tenant, batch_id)))

    @app.post("/v1/batches/{batch_id}/cancel")
    async def cancel(batch_id: str) -> Response:
        record = await batches.cancel(current_call().tenant, batch_id)
        return JSONResponse(batch_json(record))


def listed(shown: list[dict[str, Any]], *, has_more: bool) -> dict[str, Any]:
    """A page, in OpenAI's shape."""
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": has_more,
    }


def limit_of(text: str | None, *, default: int, most: int) -> int:
    """How many a page shows. Raises BadRequestError."""
    if text is None:
        return default
    value = int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else 0
    if not 1 <= value <= most:
        raise BadRequestError(f"'limit' must be a whole number from 1 to {most}", param="limit")
    return value
