"""A handoff between fake workers: no bytes, only the first tokens and who still holds them."""

from __future__ import annotations

import asyncio

from core.request import TokenEvent

DEADLINE_S = 20.0
"""Of every wait in a test: far above what is ever needed, so that only a hang meets it."""


class FakeKv:
    """Where P's first tokens lie until D pulls them: transfer id -> a future of them."""

    def __init__(self) -> None:
        self.open: dict[str, asyncio.Future[list[TokenEvent]]] = {}

    def grant(self, transfer_id: str) -> None:
        self.open[transfer_id] = asyncio.get_running_loop().create_future()

    def complete(self, transfer_id: str, first: list[TokenEvent]) -> None:
        future = self.open.get(transfer_id)
        if future is not None and not future.done():
            future.set_result(first)

    def end(self, transfer_id: str) -> None:
        """The lease ends; a pull that waits is told so."""
        future = self.open.pop(transfer_id, None)
        if future is not None:
            future.cancel()

    async def pull(self, transfer_id: str) -> list[TokenEvent] | None:
        """The first tokens; None if P has, or keeps, nothing under this id."""
        future = self.open.get(transfer_id)
        if future is None:
            return None
        await asyncio.wait({future}, timeout=DEADLINE_S)
        self.open.pop(transfer_id, None)
        return None if future.cancelled() or not future.done() else future.result()
