"""Batches as clients see them: made, listed, looked at, cancelled; each private to its key."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from core.clock import Clock
from core.config import Config, batch_dir
from core.errors import BadRequestError, OverloadedError
from router.batch.batch_metrics import BatchMetrics
from router.batch.input_lines import ENDPOINTS
from router.batch.library import Library, LibrarySettings
from router.batch.run import RunParts
from router.batch.runner import BatchRunner
from router.batch.shelf import Shelf, is_id
from router.batch.slots import Slots
from router.door import Door
from router.tenants.call import current_call
from router.tenants.gatekeeper import Gatekeeper, check_endpoint
from state.batch_stores import open_batch_store
from state.batches import BatchRecord, new_id

WINDOW_S = 24 * 3600
MAX_METADATA = 16
MAX_METADATA_KEY = 64
MAX_METADATA_VALUE = 512


class BatchMissingError(BadRequestError):
    """There is no such batch, or it is somebody else's, which is not told apart."""

    code = "batch_not_found"
    http_status = 404


class BatchEndedError(BadRequestError):
    """It can't be cancelled any more."""

    code = "batch_ended"
    http_status = 409


class BatchesOffError(BadRequestError):
    """The operator keeps no files and runs no batches."""

    code = "unsupported_endpoint"
    http_status = 404


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOrder:
    """What a client asks for."""

    endpoint: str
    input_file_id: str
    completion_window: str
    metadata: dict[str, str] | None
    output_ttl_s: int | None


class Batches:
    """Owns the records' store. Start and close it with the router."""

    def __init__(
        self,
        config: Config,
        door: Door,
        gatekeeper: Gatekeeper,
        metrics: BatchMetrics,
        clock: Clock,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Raises ConfigError. `wall` is Unix time in seconds."""
        settings = config.batch
        self._enabled = settings.enabled
        self._model = door.settings.model
        self._max_open = settings.max_open_batches
        self._wall = wall
        shelf = Shelf(batch_dir(settings))
        self._store = open_batch_store(config, shelf.records)
        self._library = Library(
            self._store,
            shelf,
            LibrarySettings(
                settings.max_file_bytes, settings.max_tenant_bytes, settings.file_ttl_s
            ),
            wall,
        )
        slots = Slots(
            door,
            max_concurrency=settings.max_concurrency,
            max_num_seqs=config.scheduler.max_num_seqs,
        )
        metrics.watch(lambda: slots.num_used)
        parts = RunParts(
            door=door,
            gatekeeper=gatekeeper,
            store=self._store,
            shelf=shelf,
            slots=slots,
            metrics=metrics,
            wall=wall,
            max_in_hand=settings.max_concurrency,
            max_line_bytes=settings.max_line_bytes,
            max_num_lines=settings.max_num_lines,
            file_ttl_s=settings.file_ttl_s,
        )
        self._runner = BatchRunner(
            parts,
            self._library,
            clock,
            lease_s=settings.lease_s,
            max_running=settings.max_running,
        )
        self._running: asyncio.Task[None] | None = None

    @property
    def library(self) -> Library:
        """Raises BatchesOffError."""
        self._check_enabled()
        return self._library

    def start(self) -> None:
        """Goes on with what was left."""
        if self._enabled:
            self._running = asyncio.create_task(self._runner.run(), name="batches")

    async def stop(self) -> None:
        """What runs is left to others, or to the next start. Idempotent."""
        await self._runner.close()
        if self._running is not None:
            await asyncio.wait({self._running})

    async def close(self) -> None:
        """After `stop`, when nobody asks any more."""
        await self._store.close()

    async def create(self, owner: str, order: BatchOrder) -> BatchRecord:
        """Raises BadRequestError, FileMissingError, OverloadedError, PermissionDeniedError."""
        self._check_enabled()
        _check_order(order)
        key = current_call().key
        if key is not None:
            check_endpoint(key, order.endpoint)
        file = await self._library.get(owner, order.input_file_id)
        if file.purpose != "batch":
            raise BadRequestError("the file's purpose must be 'batch'", param="input_file_id")
        await self._check_room(owner)
        now = self._wall()
        record = BatchRecord(
            batch_id=new_id("batch", now),
            owner=owner,
            model=self._model,
            endpoint=order.endpoint,
            input_file_id=file.file_id,
            completion_window=order.completion_window,
            created_at=int(now),
            expires_at=int(now) + WINDOW_S,
            metadata=order.metadata,
            output_ttl_s=order.output_ttl_s,
        )
        await self._store.create_batch(record)
        self._runner.look()
        return record

    async def get(self, owner: str, batch_id: str) -> BatchRecord:
        """Raises BatchMissingError."""
        self._check_enabled()
        record = await self._store.get_batch(batch_id) if is_id(batch_id) else None
        if record is None or record.owner != owner:
            raise BatchMissingError(f"there is no batch {batch_id[:64]!r}", param="batch_id")
        return record

    async def page(
        self, owner: str, *, after: str | None, limit: int
    ) -> tuple[list[BatchRecord], bool]:
        """The newest first, and whether there are more. Raises BatchMissingError."""
        self._check_enabled()
        if after is not None:
            await self.get(owner, after)
        found = await self._store.batches(owner, after=after, limit=limit + 1)
        return list(found[:limit]), len(found) > limit

    async def cancel(self, owner: str, batch_id: str) -> BatchRecord:
        """Asks for its end. Raises BatchMissingError, BatchEndedError."""
        record = await self.get(owner, batch_id)
        if record.is_final and record.status != "cancelled":
            raise BatchEndedError(f"the batch has {record.status}", param="batch_id")
        await self._store.ask_cancel(batch_id, int(self._wall()))
        self._runner.look(batch_id)
        return await self.get(owner, batch_id)

    async def _check_room(self, owner: str) -> None:
        found = await self._store.batches(owner, after=None, limit=4 * self._max_open)
        if sum(not record.is_final for record in found) >= self._max_open:
            raise OverloadedError(
                f"{self._max_open} batches have not ended, which is the limit",
                reason="batches",
                retry_after_s=60.0,
            )

    def _check_enabled(self) -> None:
        if not self._enabled:
            raise BatchesOffError("files and batches are switched off here")


def _check_order(order: BatchOrder) -> None:
    if order.endpoint not in ENDPOINTS:
        what = f"'endpoint' must be one of {', '.join(ENDPOINTS)}"
        raise BadRequestError(what, param="endpoint")
    if order.completion_window != "24h":
        raise BadRequestError("'completion_window' must be '24h'", param="completion_window")
    metadata = order.metadata or {}
    if len(metadata) > MAX_METADATA:
        raise BadRequestError(f"'metadata' has more than {MAX_METADATA} pairs", param="metadata")
    for name, value in metadata.items():
        if len(name) > MAX_METADATA_KEY or len(value) > MAX_METADATA_VALUE:
            what = f"'metadata': keys have {MAX_METADATA_KEY} characters at most, values "
            raise BadRequestError(what + str(MAX_METADATA_VALUE), param="metadata")


def batch_json(record: BatchRecord) -> dict[str, Any]:
    """As clients see it."""
    usage = record.usage
    inputs, outputs = usage.get("input_tokens", 0), usage.get("output_tokens", 0)
    errors = {"object": "list", "data": list(record.errors)} if record.errors else None
    return {
        "id": record.batch_id,
        "object": "batch",
        "endpoint": record.endpoint,
        "model": record.model,
        "errors": errors,
        "input_file_id": record.input_file_id,
        "completion_window": record.completion_window,
        "status": record.status,
        "output_file_id": record.output_file_id,
        "error_file_id": record.error_file_id,
        "created_at": record.created_at,
        "in_progress_at": record.in_progress_at,
        "expires_at": record.expires_at,
        "finalizing_at": record.finalizing_at,
        "completed_at": record.completed_at,
        "failed_at": record.failed_at,
        "expired_at": record.expired_at,
        "cancelling_at": record.cancelling_at,
        "cancelled_at": record.cancelled_at,
        "request_counts": {
            "total": record.num_total,
            "completed": record.num_completed,
            "failed": record.num_failed,
        },
        "usage": {
            "input_tokens": inputs,
            "input_tokens_details": {"cached_tokens": usage.get("cached_tokens", 0)},
            "output_tokens": outputs,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": inputs + outputs,
        },
        "metadata": record.metadata,
    }
