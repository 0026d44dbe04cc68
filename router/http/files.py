"""/v1/files: uploads for batches, and what came of those."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.datastructures import QueryParams

from core.errors import BadRequestError
from router.batch.batches import Batches
from router.batch.library import file_json
from router.http.batches import limit_of, listed
from router.http.body import BodyTooLargeError
from router.http.file_reply import file_reply
from router.tenants.call import current_call
from state.batches import FileRecord

MAX_FILES_LISTED = 10_000


def add_files(app: FastAPI, batches: Batches) -> None:
    @app.post("/v1/files")
    async def upload(request: Request) -> Response:
        library = batches.library
        announced = request.headers.get("content-length", "")
        if announced.isdigit() and not library.may_fit(int(announced[:18])):
            raise BodyTooLargeError("the file is larger than is allowed here")
        content_type = request.headers.get("content-type", "")
        record = await library.add(current_call().tenant, request.stream(), content_type)
        return JSONResponse(file_json(record))

    @app.get("/v1/files")
    async def files(request: Request) -> Response:
        query = request.query_params
        limit = limit_of(query.get("limit"), default=MAX_FILES_LISTED, most=MAX_FILES_LISTED)
        found = _page(await batches.library.files(current_call().tenant), query)
        shown = [file_json(record) for record in found[:limit]]
        return JSONResponse(listed(shown, has_more=len(found) > limit))

    @app.get("/v1/files/{file_id}")
    async def one_file(file_id: str) -> Response:
        return JSONResponse(file_json(await batches.library.get(current_call().tenant, file_id)))

    @app.delete("/v1/files/{file_id}")
    async def delete(file_id: str) -> Response:
        await batches.library.delete(current_call().tenant, file_id)
        return JSONResponse({"id": file_id, "object": "file", "deleted": True})

    @app.get("/v1/files/{file_id}/content")
    async def content(request: Request, file_id: str) -> Response:
        file = await batches.library.content(current_call().tenant, file_id)
        return file_reply(file, f'"{file_id}"', request.headers)


def _page(found: list[FileRecord], query: QueryParams) -> list[FileRecord]:
    """What of them, the oldest first, was asked for. Raises BadRequestError."""
    order, purpose, after = query.get("order", "desc"), query.get("purpose"), query.get("after")
    if order not in ("asc", "desc"):
        raise BadRequestError("'order' must be asc or desc", param="order")
    found = [record for record in found if purpose in (None, record.purpose)]
    if order == "desc":
        found.reverse()
    if after is None:
        return found
    places = [place for place, record in enumerate(found) if record.file_id == after]
    if not places:
        raise BadRequestError("'after' is none of these files", param="after")
    return found[places[0] + 1 :]
