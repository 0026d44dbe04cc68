"""What workers say of their KV blocks once all work is over."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import grpc.aio

from bench.chaos.verdict import Books
from core.clock import Clock
from protos import worker_pb2, worker_pb2_grpc

_TIMEOUT_S = 5.0
_AGAIN_AFTER_S = 0.25


async def books_at_rest(
    addresses: Mapping[str, str], *, within_s: float, clock: Clock
) -> tuple[Books, ...]:
    """Each worker's books when nobody holds a block any more, or else at the end of that time.

    The last leases end by time, and nothing outside tells when; so workers are asked again.
    """
    asked = (_at_rest(name, address, within_s, clock) for name, address in addresses.items())
    return tuple(await asyncio.gather(*asked))


async def _at_rest(name: str, address: str, within_s: float, clock: Clock) -> Books:
    until_s = clock.now() + within_s
    async with grpc.aio.insecure_channel(address) as channel:
        stub: worker_pb2_grpc.WorkerAsyncStub = worker_pb2_grpc.WorkerStub(channel)
        while True:
            books = await _ask(name, stub)
            if not (books.num_leaked or books.problem) or clock.now() >= until_s:
                return books
            await asyncio.sleep(_AGAIN_AFTER_S)


async def _ask(name: str, stub: worker_pb2_grpc.WorkerAsyncStub) -> Books:
    try:
        reply = await stub.AuditKv(worker_pb2.AuditKvRequest(), timeout=_TIMEOUT_S)
    except grpc.aio.AioRpcError as error:
        return Books(name, 0, 0, f"no answer ({error.code().name}): {error.details()}")
    unheld = reply.blocks_by_state["cached"] + reply.blocks_by_state["free"]
    return Books(name, reply.num_blocks, unheld, _problem(reply))


def _problem(reply: worker_pb2.AuditKvReply) -> str:
    total = sum(reply.blocks_by_state.values())
    if total != reply.num_blocks:
        return f"the states add up to {total} blocks, the pool has {reply.num_blocks}"
    if not reply.consistent:
        return reply.problem or "the books are inconsistent"
    return ", ".join(f"{each.kind} {each.id} holds {each.num_blocks}" for each in reply.holders)
