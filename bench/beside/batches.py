"""A server's batches as a client sees them: begun, looked at, cancelled, and what came of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Protocol

from bench.beside.lines import ENDPOINT
from bench.client import OpenAIClient, ServerError

FINAL = frozenset({"failed", "completed", "expired", "cancelled"})
_BOUNDARY = "tandem-bench-boundary"
_JSON = "application/json"


@dataclass(frozen=True, slots=True)
class BatchView:
    """A batch as the server describes it."""

    batch_id: str
    status: str
    num_completed: int = 0
    output_file_id: str | None = None
    error_file_id: str | None = None

    @property
    def is_over(self) -> bool:
        return self.status in FINAL


class Batches(Protocol):
    """`HttpBatches`, or a test's."""

    async def begin(self, data: bytes) -> BatchView:
        """Of an input file's bytes."""
        ...

    async def look(self, batch_id: str) -> BatchView: ...

    async def cancel(self, batch_id: str) -> None: ...

    async def results(self, file_id: str | None) -> list[dict[str, Any]]:
        """The lines of a result file; none without one."""
        ...


class HttpBatches:
    """Through the client's connections. Every call raises ServerError for any other answer."""

    def __init__(self, client: OpenAIClient) -> None:
        self._client = client

    async def begin(self, data: bytes) -> BatchView:
        file = await self._ask("POST", "/files", _form(data), _content_type())
        order = {
            "input_file_id": file["id"],
            "endpoint": ENDPOINT,
            "completion_window": "24h",
        }
        return _view(await self._ask("POST", "/batches", json.dumps(order).encode()))

    async def look(self, batch_id: str) -> BatchView:
        return _view(await self._ask("GET", f"/batches/{batch_id}"))

    async def cancel(self, batch_id: str) -> None:
        await self._ask("POST", f"/batches/{batch_id}/cancel")

    async def results(self, file_id: str | None) -> list[dict[str, Any]]:
        if file_id is None:
            return []
        content = await self._bytes("GET", f"/files/{file_id}/content")
        return [json.loads(line) for line in content.splitlines()]

    async def _ask(
        self, method: str, path: str, body: bytes = b"", content_type: str = _JSON
    ) -> dict[str, Any]:
        found = json.loads(await self._bytes(method, path, body, content_type))
        assert isinstance(found, dict)
        return found

    async def _bytes(
        self, method: str, path: str, body: bytes = b"", content_type: str = _JSON
    ) -> bytes:
        response = await self._client.call(method, path, body, content_type)
        if response.status != 200:
            said = response.body[:200].decode(errors="replace")
            raise ServerError(f"{method} {path}: HTTP {response.status} {said}")
        return response.body


def _view(batch: dict[str, Any]) -> BatchView:
    return BatchView(
        batch_id=batch["id"],
        status=batch["status"],
        num_completed=batch["request_counts"]["completed"],
        output_file_id=batch["output_file_id"],
        error_file_id=batch["error_file_id"],
    )


def _content_type() -> str:
    return f"multipart/form-data; boundary={_BOUNDARY}"


def _form(data: bytes) -> bytes:
    """An upload of one file with the purpose of a batch."""
    disposition = "Content-Disposition: form-data; name="
    head = (
        f'--{_BOUNDARY}\r\n{disposition}"purpose"\r\n\r\nbatch\r\n'
        f'--{_BOUNDARY}\r\n{disposition}"file"; filename="batch.jsonl"\r\n'
        "Content-Type: application/jsonl\r\n\r\n"
    )
    return head.encode() + data + f"\r\n--{_BOUNDARY}--\r\n".encode()
