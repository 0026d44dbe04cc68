"""From a call's credentials to the `Call` it is, or a refusal, whichever protocol it came by."""

from __future__ import annotations

from core.errors import BadRequestError, PermissionDeniedError
from router.tenants.call import Call, call_of
from router.tenants.key_ring import KeyRing
from state.tenants import KeyRecord, PriorityClass

MAX_DEADLINE_MS = 24 * 3600 * 1000
OPEN = frozenset({"/health", "/live", "/ready", "/version", "/openapi.json", "/docs", "/dashboard"})
"""What tells nothing about anybody: probes, and pages that ask for a key themselves."""
OPEN_FOLDER = "/dashboard/assets/"
"""Such a page's files."""


class Gatekeeper:
    """Without a ring everybody may call, and is nobody."""

    def __init__(self, ring: KeyRing | None, *, open_metrics: bool) -> None:
        self._ring = ring
        self._open = OPEN | {"/metrics"} if open_metrics else OPEN

    async def admit(
        self, endpoint: str, authorization: str | None, deadline_ms: str | None = None
    ) -> Call:
        """`endpoint` is a path, also for gRPC. Raises AuthenticationError, PermissionDeniedError,
        UnavailableError while keys can't be checked, and BadRequestError for a deadline."""
        timeout_s = None if deadline_ms is None else deadline_of(deadline_ms)
        is_open = endpoint in self._open or endpoint.startswith(OPEN_FOLDER)
        if self._ring is None or is_open:
            return Call(timeout_s=timeout_s)
        record = await self._ring.check(bearer_token(authorization))
        check_endpoint(record, endpoint)
        return call_of(record, timeout_s=timeout_s)

    async def batch_call(self, key_id: str) -> Call | None:
        """For a batch's requests, which run when its client is long gone: behind everything online.
        None: the key is no longer good. Without keys in force the id is not looked at."""
        if self._ring is None:
            return Call(priority_class=PriorityClass.BATCH)
        record = await self._ring.record(key_id)
        return None if record is None else call_of(record, batch=True)


def bearer_token(authorization: str | None) -> str | None:
    """The token of `Bearer TOKEN`; None without one."""
    scheme, _, token = (authorization or "").strip().partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def check_endpoint(record: KeyRecord, endpoint: str) -> None:
    """Raises PermissionDeniedError unless the key may call it, or a path above it."""
    for allowed in record.endpoints:
        if endpoint == allowed or endpoint.startswith(allowed.rstrip("/") + "/"):
            return
    if record.endpoints:
        raise PermissionDeniedError(f"this key may not call {endpoint[:128]}")


def deadline_of(milliseconds: str) -> float:
    """`x-request-deadline-ms` in seconds. Raises BadRequestError for anything but a sane number."""
    text = milliseconds.strip()
    value = int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else 0
    if not 1 <= value <= MAX_DEADLINE_MS:
        raise BadRequestError(
            f"x-request-deadline-ms must be a whole number from 1 to {MAX_DEADLINE_MS}",
            param="x-request-deadline-ms",
        )
    return value / 1000
