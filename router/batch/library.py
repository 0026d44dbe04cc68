"""Clients' files: each private to its key, bounded in size, gone when their time is over."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, BinaryIO

from core.errors import BadRequestError, OverloadedError
from router.batch.shelf import Shelf, is_id
from router.batch.upload import OVERHEAD_BYTES, Upload, read_upload
from state.batches import BatchStore, FileRecord, new_id

MIN_TTL_S, MAX_TTL_S = 3600, 30 * 24 * 3600
MAX_UPLOADS = 8
"""At once, of everybody."""
_FIELDS = frozenset({"purpose", "expires_after[anchor]", "expires_after[seconds]"})


class FileMissingError(BadRequestError):
    """There is no such file, or it is somebody else's, which is not told apart."""

    code = "file_not_found"
    http_status = 404


class FileInUseError(BadRequestError):
    """A batch that has not ended reads the file."""

    code = "file_in_use"
    http_status = 409


@dataclass(frozen=True, slots=True)
class LibrarySettings:
    """What an owner may keep."""

    max_file_bytes: int
    max_tenant_bytes: int
    file_ttl_s: int


class Library:
    """`wall` is Unix time in seconds."""

    def __init__(
        self,
        store: BatchStore,
        shelf: Shelf,
        settings: LibrarySettings,
        wall: Callable[[], float],
    ) -> None:
        self._store = store
        self._shelf = shelf
        self._settings = settings
        self._wall = wall
        self._num_uploads = 0

    def may_fit(self, num_bytes: int) -> bool:
        """Whether an upload of that size, form included, is worth being read."""
        return num_bytes <= self._settings.max_file_bytes + OVERHEAD_BYTES

    async def add(self, owner: str, pieces: AsyncIterator[bytes], content_type: str) -> FileRecord:
        """A new file of an upload's. Raises BadRequestError, DeadlineError, OverloadedError."""
        if self._num_uploads >= MAX_UPLOADS:
            raise OverloadedError(
                f"{MAX_UPLOADS} uploads are under way", reason="saturated", retry_after_s=1.0
            )
        self._num_uploads += 1
        try:
            with self._shelf.writing() as path:
                limit = self._settings.max_file_bytes
                upload = await read_upload(pieces, content_type, path, max_bytes=limit)
                record = self._record(owner, upload)
                await asyncio.to_thread(self._shelf.keep, path, record.file_id)
        finally:
            self._num_uploads -= 1
        limit = self._settings.max_tenant_bytes
        fits = False
        try:
            fits = await self._store.put_file(record, max_total_bytes=limit)
        finally:
            if not fits:
                self._shelf.remove(record.file_id)
        if not fits:
            raise BadRequestError(
                f"all files of a key together may have {limit} bytes: delete some",
                param="file",
                code="storage_limit_exceeded",
            )
        return record

    async def get(self, owner: str, file_id: str) -> FileRecord:
        """Raises FileMissingError."""
        record = await self._store.get_file(file_id) if is_id(file_id) else None
        if record is None or record.owner != owner or self._is_over(record):
            raise FileMissingError(f"there is no file {file_id[:64]!r}", param="file_id")
        return record

    async def content(self, owner: str, file_id: str) -> BinaryIO:
        """The file's bytes, to be closed; whole even if it is deleted now. Raises
        FileMissingError."""
        record = await self.get(owner, file_id)
        try:
            return self._shelf.path(record.file_id).open("rb")
        except FileNotFoundError:
            missing = f"the bytes of {file_id} are not here"
            raise FileMissingError(missing, param="file_id") from None

    async def files(self, owner: str) -> list[FileRecord]:
        """The oldest first."""
        found = await self._store.files(owner)
        return [record for record in found if not self._is_over(record)]

    async def delete(self, owner: str, file_id: str) -> None:
        """Raises FileMissingError, FileInUseError."""
        record = await self.get(owner, file_id)
        if record.file_id in await self._inputs_in_use():
            raise FileInUseError("a batch that has not ended reads this file", param="file_id")
        await self._remove(record)

    async def sweep(self) -> None:
        """Removes files whose time is over, and what broken uploads left."""
        await asyncio.to_thread(self._shelf.remove_stale)
        expired = await self._store.expired_files(self._wall())
        in_use = await self._inputs_in_use() if expired else set()
        for record in expired:
            if record.file_id not in in_use:
                await self._remove(record)

    async def _remove(self, record: FileRecord) -> None:
        await self._store.delete_file(record.file_id)
        with contextlib.suppress(OSError):
            await asyncio.to_thread(self._shelf.remove, record.file_id)

    async def _inputs_in_use(self) -> set[str]:
        used = set()
        for batch_id in await self._store.open_batches():
            batch = await self._store.get_batch(batch_id)
            if batch is not None:
                used.add(batch.input_file_id)
        return used

    def _is_over(self, record: FileRecord) -> bool:
        return record.expires_at is not None and record.expires_at <= self._wall()

    def _record(self, owner: str, upload: Upload) -> FileRecord:
        fields = upload.fields
        for name in fields:
            if name not in _FIELDS:
                raise BadRequestError(
                    "the form has an unknown field", param=name[:64], code="unknown_parameter"
                )
        if upload.filename is None:
            raise _missing("file")
        if "purpose" not in fields:
            raise _missing("purpose")
        if fields["purpose"] != "batch":
            raise BadRequestError("'purpose' must be 'batch'", param="purpose")
        now = self._wall()
        return FileRecord(
            file_id=new_id("file", now),
            owner=owner,
            filename=upload.filename,
            purpose="batch",
            num_bytes=upload.num_bytes,
            created_at=int(now),
            expires_at=int(now) + (_ttl_of(fields) or self._settings.file_ttl_s),
        )


def _ttl_of(fields: dict[str, str]) -> int | None:
    anchor, seconds = (fields.get(f"expires_after[{name}]") for name in ("anchor", "seconds"))
    if anchor is None and seconds is None:
        return None
    number = int(seconds) if seconds and seconds.isascii() and seconds.isdigit() else 0
    return checked_ttl(anchor, number, "expires_after")


def checked_ttl(anchor: str | None, seconds: int, param: str) -> int:
    """Seconds to keep a file, as a client asks. Raises BadRequestError."""
    if anchor != "created_at":
        raise BadRequestError(f"'{param}.anchor' must be 'created_at'", param=f"{param}.anchor")
    if not MIN_TTL_S <= seconds <= MAX_TTL_S:
        what = f"'{param}.seconds' must be from {MIN_TTL_S} to {MAX_TTL_S}"
        raise BadRequestError(what, param=f"{param}.seconds")
    return seconds


def _missing(name: str) -> BadRequestError:
    return BadRequestError(f"'{name}' is required", param=name, code="missing_required_parameter")


def file_json(record: FileRecord) -> dict[str, Any]:
    """As clients see it."""
    return {
        "id": record.file_id,
        "object": "file",
        "bytes": record.num_bytes,
        "created_at": record.created_at,
        "expires_at": record.expires_at,
        "filename": record.filename,
        "purpose": record.purpose,
        "status": "processed",
        "status_details": None,
    }
