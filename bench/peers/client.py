"""The load generator's client, as tolerant as other servers need it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from bench.client import OpenAIClient, PreparedRequest
from bench.record import RequestRecord

# What the client says of a stream whose last event is not [DONE].
_NO_DONE = "stream ended early"


class PeerClient(OpenAIClient):
    """Sends prepared requests to one server."""

    async def send(self, request: PreparedRequest) -> RequestRecord:
        """As the base class; but a stream with its usage is whole even without [DONE].

        (`transformers serve` closes its completions so.)
        """
        record = await super().send(request)
        whole = record.error == _NO_DONE and record.num_output_tokens > 0
        return replace(record, error=None) if whole else record

    async def follow(
        self, request: PreparedRequest, on_event: Callable[[float, bytes], None]
    ) -> None:
        """Hands over each event with its time until the answer ends or the caller is cancelled.

        Raises OSError or ProtocolError.
        """
        await self._pool.exchange(request.payload, on_event)
