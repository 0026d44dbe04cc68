"""The end of a batch: what its unanswered lines are told, and the files that come of it."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
from dataclasses import dataclass

from router.batch.line_answer import LineResult, not_run
from router.batch.results import find_results, write_results
from router.batch.shelf import Shelf
from state.batches import BatchRecord, BatchStore, FileRecord

KINDS = ("output", "error")


@dataclass(frozen=True, slots=True)
class Ending:
    """Why lines were left over."""

    cancelled: bool

    def result(self, custom_id: str) -> LineResult:
        if self.cancelled:
            what = "the batch was cancelled before this request was answered"
            return not_run(custom_id, "batch_cancelled", what)
        what = "the batch's window ended before this request was answered"
        return not_run(custom_id, "batch_expired", what)


def result_file_id(batch_id: str, epoch: int, kind: str) -> str:
    """Another for each holder of the lease: none can write over another's."""
    digest = hashlib.sha256(f"{batch_id}/{epoch}/{kind}".encode()).hexdigest()
    return f"file-{batch_id.removeprefix('batch_')[:12]}{digest[:16]}"


async def publish(
    store: BatchStore,
    shelf: Shelf,
    record: BatchRecord,
    epoch: int,
    *,
    now: int,
    file_ttl_s: int,
) -> BatchRecord:
    """Makes the output and the error file, where there is anything for them.

    The record with their ids, which is the caller's to write. Raises OSError,
    StoreUnavailableError.
    """
    for former in range(1, epoch):
        for kind in KINDS:
            await _remove(store, shelf, result_file_id(record.batch_id, former, kind))
    found = await asyncio.to_thread(find_results, shelf.parts(record.batch_id))
    ids: dict[str, str | None] = {}
    for kind in KINDS:
        is_error = kind == "error"
        places = {number: p for number, p in found.items() if p.is_error == is_error}
        if not places:
            ids[kind] = None
            continue
        file_id = result_file_id(record.batch_id, epoch, kind)
        with shelf.writing() as path:
            await asyncio.to_thread(write_results, places, path)
            num_bytes = path.stat().st_size
            await asyncio.to_thread(shelf.keep, path, file_id)
        file = FileRecord(
            file_id=file_id,
            owner=record.owner,
            filename=f"{record.batch_id}_{kind}.jsonl",
            purpose="batch_output",
            num_bytes=num_bytes,
            created_at=now,
            expires_at=now + (record.output_ttl_s or file_ttl_s),
        )
        await store.put_file(file)
        ids[kind] = file_id
    num_failed = sum(place.is_error for place in found.values())
    return dataclasses.replace(
        record,
        output_file_id=ids["output"],
        error_file_id=ids["error"],
        num_failed=num_failed,
        num_completed=len(found) - num_failed,
    )


async def _remove(store: BatchStore, shelf: Shelf, file_id: str) -> None:
    await store.delete_file(file_id)
    await asyncio.to_thread(shelf.remove, file_id)
