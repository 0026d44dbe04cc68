"""/dashboard: the page, its files, and what it asks for.

GET /dashboard                           the page: open to all, since it holds nothing of anybody
GET /dashboard/assets/{digest}/{name}    its files: open, and kept for ever
GET /dashboard/snapshot                  one snapshot; with a key where requests need one
GET /dashboard/events                    one a second, as server-sent events; likewise

Waterfalls come from /debug/requests, and the chat box from /v1/chat/completions, as for any client.
"""

from __future__ import annotations

from fastapi import FastAPI, Request, Response

from router.door import Door
from router.http.operations import READ
from router.http.reply import StreamReply
from router.page.feed import SnapshotFeed
from router.page.files import ASSETS, PageFile, load_page

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)
"""Nothing from elsewhere, nothing inline, and no text that becomes markup."""
SAFETY = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


def add_page(app: FastAPI, door: Door, *, shows_requests: bool) -> None:
    files, feed = load_page(), SnapshotFeed(door, door.clock, shows_requests=shows_requests)

    @app.api_route("/dashboard", methods=READ)
    async def dashboard(request: Request) -> Response:
        return _answer(request, files.index, "no-cache")

    @app.api_route(f"{ASSETS}{{digest}}/{{name}}", methods=READ)
    async def asset(request: Request, digest: str, name: str) -> Response:
        found = files.assets.get(name)
        if found is None or digest != files.digest:
            return Response(status_code=404, headers={"cache-control": "no-store"})
        return _answer(request, found, "public, max-age=31536000, immutable")

    @app.api_route("/dashboard/snapshot", methods=READ)
    async def snapshot() -> Response:
        return Response(
            feed.current(), media_type="application/json", headers={"cache-control": "no-store"}
        )

    @app.get("/dashboard/events")
    async def events() -> Response:
        return StreamReply(feed.events(), {})


def _answer(request: Request, file: PageFile, cache_control: str) -> Response:
    headers = SAFETY | {"cache-control": cache_control, "etag": file.etag}
    if file.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(file.content, media_type=file.media_type, headers=headers)
