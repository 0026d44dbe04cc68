"""A control stream that is late, cut and ended on purpose: `core.faults` at kv_control."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TypeVar

from core.faults import FaultAction, FaultPoint, Faults
from protos import kv_transfer_pb2 as pb

M = TypeVar("M", pb.LinkRequest, pb.LinkEvent)


async def faulty_stream(
    stream: AsyncIterator[list[M]], faults: Faults | None
) -> AsyncIterator[list[M]]:
    """What one side of a link says. Heartbeats come by time, and are no occurrences."""
    cut = False
    async for messages in stream:
        said: list[M] = []
        for message in messages:
            if faults is not None and message.WhichOneof("kind") != "heartbeat":
                fault = faults.take(FaultPoint.KV_CONTROL)
                if fault is not None:
                    await asyncio.sleep(fault.delay_s)
                    if fault.action is FaultAction.FAIL:
                        if said:
                            yield said
                        return
                    cut = cut or fault.action is FaultAction.DROP
            if not cut:
                said.append(message)
        if said:
            yield said
