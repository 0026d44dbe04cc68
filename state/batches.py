"""Files and batches as they are kept, and the contract of who keeps them.

A batch is run by whoever holds its lease: `take` gives it with a new epoch when the former one has
run out, and only the holder of the latest epoch can `update` the record. What clients ask for
meanwhile (`ask_cancel`) is kept beside the record, so neither overwrites the other. Ids begin with
the time they were made at, so their order is that of creation. Every call has a deadline; past it:
`StoreUnavailableError`.
"""

from __future__ import annotations

import dataclasses
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args

Status = Literal[
    "validating",
    "failed",
    "in_progress",
    "finalizing",
    "completed",
    "expired",
    "cancelling",
    "cancelled",
]
FINAL = frozenset({"failed", "completed", "expired", "cancelled"})
OPEN = frozenset(get_args(Status)) - FINAL
MAX_COUNTED = 1000
"""Open batches that `totals` looks at, the oldest ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord:
    """One file; its bytes lie in the directory of batches under its id. Times are Unix seconds."""

    file_id: str
    owner: str
    """Id of the key that it is private to; empty where nobody looks at keys."""
    filename: str
    purpose: str
    num_bytes: int
    created_at: int
    expires_at: int | None = None

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecord:
    """One batch. Times are Unix seconds, None: it has not come to that."""

    batch_id: str
    owner: str
    model: str
    """Only routers that serve it run the batch."""
    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: int
    expires_at: int
    status: Status = "validating"
    metadata: dict[str, str] | None = None
    output_ttl_s: int | None = None
    """How long its output files are kept; None: as long as any file."""
    errors: tuple[dict[str, Any], ...] = ()
    """Why it failed as a whole: {code, line, message, param}."""
    output_file_id: str | None = None
    error_file_id: str | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    num_total: int = 0
    num_completed: int = 0
    num_failed: int = 0
    usage: dict[str, int] = field(default_factory=dict)
    """Sums over its answered lines: input_tokens, output_tokens, cached_tokens."""

    @property
    def is_final(self) -> bool:
        return self.status in FINAL

    def cancelled_by_client(self, at: int | None) -> BatchRecord:
        """As clients see it once they have asked for its end at that time."""
        if at is None or self.is_final:
            return self
        return dataclasses.replace(self, status="cancelling", cancelling_at=at)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))


@dataclass(frozen=True, slots=True)
class Totals:
    """What all owners have together."""

    num_files: int
    num_file_bytes: int
    num_open: Mapping[str, int]
    """Batches that have not ended, by status; as clients see it."""


def file_from_json(text: str | bytes) -> FileRecord:
    """Ignores fields that a newer release added."""
    return FileRecord(**_known(FileRecord, text))


def batch_from_json(text: str | bytes) -> BatchRecord:
    """Ignores fields that a newer release added."""
    fields = _known(BatchRecord, text)
    return BatchRecord(**fields | {"errors": tuple(fields.get("errors", ()))})


def new_id(kind: Literal["file", "batch"], now: float) -> str:
    """`file-` or `batch_` and 28 hexadecimal digits: 12 of the time in ms, 16 at random."""
    separator = "-" if kind == "file" else "_"
    return f"{kind}{separator}{int(now * 1000):012x}{secrets.token_hex(8)}"


class BatchStore(Protocol):
    """`state.file_batches` and `state.redis_batches`."""

    async def put_file(self, record: FileRecord, *, max_total_bytes: int | None = None) -> bool:
        """False, and nothing done, if its owner's files would exceed that together."""
        ...

    async def get_file(self, file_id: str) -> FileRecord | None: ...

    async def delete_file(self, file_id: str) -> bool:
        """Whether it was there."""
        ...

    async def files(self, owner: str) -> tuple[FileRecord, ...]:
        """The oldest first."""
        ...

    async def expired_files(self, now: float) -> tuple[FileRecord, ...]:
        """Some of those whose time is over."""
        ...

    async def create_batch(self, record: BatchRecord) -> None: ...

    async def get_batch(self, batch_id: str) -> BatchRecord | None:
        """With the client's wish for its end, if there is one."""
        ...

    async def batches(
        self, owner: str, *, after: str | None, limit: int
    ) -> tuple[BatchRecord, ...]:
        """The newest first, from the one made before `after`."""
        ...

    async def open_batches(self) -> tuple[str, ...]:
        """Ids of those that have not ended, the oldest first."""
        ...

    async def ask_cancel(self, batch_id: str, at: int) -> None:
        """Notes the first wish."""
        ...

    async def take(self, batch_id: str, *, ttl_s: float) -> int | None:
        """The lease's new epoch; None while somebody else holds it."""
        ...

    async def renew(self, batch_id: str, epoch: int, *, ttl_s: float) -> bool:
        """False: the lease has gone to somebody else."""
        ...

    async def release(self, batch_id: str, epoch: int) -> None:
        """Others need not wait for it to run out. Idempotent."""
        ...

    async def update(self, record: BatchRecord, epoch: int) -> bool:
        """False, and nothing done, if the lease has gone to somebody else, or the batch has ended:
        what ended stays as it is."""
        ...

    async def totals(self) -> Totals: ...

    async def close(self) -> None: ...


def _known(kind: type[FileRecord] | type[BatchRecord], text: str | bytes) -> dict[str, Any]:
    fields = json.loads(text)
    return {f.name: fields[f.name] for f in dataclasses.fields(kind) if f.name in fields}
