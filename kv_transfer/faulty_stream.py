"""A control stream that loses, delays and ends on purpose: `core.faults` at kv_control."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TypeVar

from core.faults import FaultAction, FaultPoint, Faults
from protos import kv_transfer_pb2 as pb

M = TypeVar("M", pb.LinkRequest, pb.LinkEvent)


async def faulty_stream(stream: AsyncIterator[M], faults: Faults | None) -> AsyncIterator[M]:
    """What one side of a link says. Heartbeats, which come by time, are let through uncounted."""
    async for message in stream:
        if faults is None or message.WhichOneof("kind") == "heartbeat":
            yield message
            continue
        fault = faults.take(FaultPoint.KV_CONTROL)
        if fault is not None:
            await asyncio.sleep(fault.delay_s)
            if fault.action is FaultAction.FAIL:
                return
        if fault is None or fault.action is not FaultAction.DROP:
            yield message
