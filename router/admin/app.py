"""The admin server's application: keys, usage and limits, for who holds `router.admin_token`.

    GET    /admin/keys                 all keys, never their secrets
    POST   /admin/keys                 a new one; its secret is in this answer and nowhere else
    POST   /admin/keys/{id}/revoke     refused from now on
    GET    /admin/usage?day=&key=      what was used on a day (UTC)
    GET    /admin/limits               how this router counts: shared or alone, the line, the house
    GET    /admin/limits/{id}          what a key has left of its limits

Other routers hear of a revoked key after `tenants.refresh_s`.
"""

from __future__ import annotations

import dataclasses
import hmac
import time
from collections.abc import Awaitable, Callable

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from core.errors import AuthenticationError, BadRequestError, UnavailableError
from router.http.errors import error_response, install_error_handlers
from router.pinning import pinned_tokens
from router.tenants.gatekeeper import bearer_token
from router.tenants.key_ring import KeyRing
from router.tenants.limits import Limits
from router.tenants.usage import day_of
from router.visit import Hall
from state.api_key import MAX_NAME_LENGTH, new_key
from state.store import StoreUnavailableError
from state.tenants import (
    KeyLimits,
    KeyRecord,
    LimitDemand,
    PriorityClass,
    TenantStore,
    UsageRow,
)

MAX_BODY_BYTES = 64 * 1024


class NewKey(BaseModel):
    """The body of POST /admin/keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str = Field(min_length=1, max_length=MAX_NAME_LENGTH)
    priority_class: PriorityClass = PriorityClass.STANDARD
    requests_per_minute: int | None = Field(default=None, ge=1)
    tokens_per_minute: int | None = Field(default=None, ge=1)
    max_concurrency: int | None = Field(default=None, ge=1)
    daily_tokens: int | None = Field(default=None, ge=1)
    pinned_tokens: int | None = Field(default=None, ge=0)
    expires_at: float | None = None
    """Unix time in seconds."""
    isolate_cache: bool = True
    models: list[str] = Field(default_factory=list, max_length=64)
    endpoints: list[str] = Field(default_factory=list, max_length=64)


@dataclasses.dataclass(frozen=True, slots=True)
class Admin:
    """What the application works on; without keys in force there are no ring and no limits."""

    token: str
    store: TenantStore
    hall: Hall
    ring: KeyRing | None
    limits: Limits | None


def create_admin_app(admin: Admin) -> FastAPI:
    app = FastAPI(title="Tandem admin", docs_url=None, redoc_url=None, openapi_url=None)
    install_error_handlers(app)
    app.middleware("http")(_only_with(admin.token))
    app.add_exception_handler(StoreUnavailableError, _on_store)
    _add_keys(app, admin)
    _add_usage(app, admin)
    return app


def _only_with(
    token: str,
) -> Callable[[Request, Callable[[Request], Awaitable[Response]]], Awaitable[Response]]:
    async def check(request: Request, call: Callable[[Request], Awaitable[Response]]) -> Response:
        shown = bearer_token(request.headers.get("authorization")) or ""
        if not hmac.compare_digest(shown.encode(), token.encode()):
            return error_response(AuthenticationError("the admin token is missing or wrong"))
        return await call(request)

    return check


async def _on_store(_request: Request, error: Exception) -> Response:
    return error_response(UnavailableError(str(error), reason="store"))


def _add_keys(app: FastAPI, admin: Admin) -> None:
    @app.get("/admin/keys")
    async def keys() -> Response:
        return JSONResponse({"keys": [shown(record) for record in await admin.store.keys()]})

    @app.post("/admin/keys")
    async def create(request: Request) -> Response:
        asked = await _body(request)
        key, record = new_key(
            asked.name,
            now=time.time(),
            priority_class=asked.priority_class,
            limits=KeyLimits(
                asked.requests_per_minute,
                asked.tokens_per_minute,
                asked.max_concurrency,
                asked.daily_tokens,
                asked.pinned_tokens,
            ),
            expires_at=asked.expires_at,
            isolate_cache=asked.isolate_cache,
            models=asked.models,
            endpoints=asked.endpoints,
        )
        await admin.store.put_key(record)
        return JSONResponse(shown(record) | {"key": key}, status_code=201)

    @app.post("/admin/keys/{key_id}/revoke")
    async def revoke(key_id: str) -> Response:
        record = await _known(admin.store, key_id)
        revoked = dataclasses.replace(record, revoked_at=record.revoked_at or time.time())
        await admin.store.put_key(revoked)
        if admin.ring is not None:
            admin.ring.forget(key_id)
        return JSONResponse(shown(revoked))


def _add_usage(app: FastAPI, admin: Admin) -> None:
    @app.get("/admin/usage")
    async def usage(day: str | None = None, key: str | None = None) -> Response:
        day = day or day_of(time.time())
        rows = await admin.store.usage(day, key)
        return JSONResponse({"day": day, "usage": [usage_shown(row) for row in rows]})

    @app.get("/admin/limits")
    async def limits() -> Response:
        hall, counting = admin.hall, admin.limits
        return JSONResponse(
            {
                "shared": counting is not None and not counting.is_away,
                "num_routers": 1 if counting is None else counting.num_routers,
                "num_requests": hall.admission.num_running,
                "num_waiting_tokens": hall.admission.num_waiting_tokens,
                "line": {each.value: n for each, n in hall.line.num_waiting.items()},
                "prefill_tokens_per_second": hall.line.model.tokens_per_second,
            }
        )

    @app.get("/admin/limits/{key_id}")
    async def limits_of(key_id: str) -> Response:
        record = await _known(admin.store, key_id)
        if admin.limits is None:
            raise BadRequestError("no limits are in force: tenants.require_keys is off")
        nothing = LimitDemand(key_id, record.limits, day_of(time.time()), 0, 0, None, 0.0)
        verdict = await admin.limits.acquire(nothing)
        left = {"requests": verdict.requests, "tokens": verdict.tokens}
        levels = {name: level and dataclasses.asdict(level) for name, level in left.items()}
        return JSONResponse(
            {
                **levels,
                "daily_tokens": record.limits.daily_tokens,
                "daily_tokens_used": verdict.quota_used,
                "pinned_tokens": record.limits.pinned_tokens,
                "pinned_tokens_used": pinned_tokens(admin.hall.line.views(), key_id),
                "shared": not verdict.alone,
                "num_running_here": admin.limits.local.num_running(key_id),
            }
        )


async def _known(store: TenantStore, key_id: str) -> KeyRecord:
    record = await store.get_key(key_id)
    if record is None:
        error = BadRequestError("there is no such key", param="key_id", code="key_not_found")
        error.http_status = 404
        raise error
    return record


def shown(record: KeyRecord) -> dict[str, object]:
    """A key without what is secret about it."""
    fields: dict[str, object] = dataclasses.asdict(record) | dataclasses.asdict(record.limits)
    for name in ("limits", "secret_hash", "cache_salt"):
        del fields[name]
    return fields


def usage_shown(row: UsageRow) -> dict[str, object]:
    fields: dict[str, object] = dataclasses.asdict(row) | {"cost": row.cost_nanos / 1e9}
    del fields["cost_nanos"]
    return fields


async def _body(request: Request) -> NewKey:
    data = b""
    async for piece in request.stream():
        data += piece
        if len(data) > MAX_BODY_BYTES:
            raise BadRequestError("the body is too large")
    try:
        return NewKey.model_validate_json(data)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
        param = ".".join(str(part) for part in fault["loc"])
        raise BadRequestError(f"'{param}': {fault['msg']}", param=param) from None
