"""What P tells who opens a link: a secret of that link, and where each of its ranks waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc.aio
from fakes_kv_peers import HEADS, LONG_S, PrefillPeer, transfer_config

from kv_transfer import wire
from kv_transfer.memory_link import MemoryLinkMaker
from kv_transfer.staging import StagingLimits
from kv_transfer.wire import LinkIdentity
from protos import kv_transfer_pb2 as pb
from protos.kv_transfer_pb2_grpc import KvTransferStub

HEX_DIGITS_OF_128_BITS = 32


def test_every_link_has_a_secret_of_its_own_and_says_where_its_ranks_wait() -> None:
    p = PrefillPeer(MemoryLinkMaker(), transfer_config())
    try:
        welcomes = [asyncio.run(welcome(p.port, link_id)) for link_id in ("one", "two")]
    finally:
        p.stop()
    tokens = {each.token for each in welcomes}
    assert len(tokens) == 2 and all(len(token) >= HEX_DIGITS_OF_128_BITS for token in tokens)
    for each in welcomes:
        assert [(rank.host, rank.port) for rank in each.prefill_ranks] == [("memory", 0)]


async def welcome(port: int, link_id: str) -> pb.LinkWelcome:
    """D's first words, and P's."""
    identity = LinkIdentity("decode-0", "d1", "compat", HEADS)
    hello = wire.hello(
        link_id, identity, StagingLimits(1 << 20, 2), prefill_epoch="p1", verify=False
    )
    over = asyncio.Event()

    async def requests() -> AsyncIterator[pb.LinkRequest]:
        yield hello
        await over.wait()

    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = KvTransferStub(channel).Link(requests(), timeout=LONG_S)
        try:
            (event,) = (await anext(aiter(call))).events
        finally:
            over.set()
            call.cancel()
    assert event.WhichOneof("kind") == "welcome", event
    return event.welcome
