"""Quantised KV from P to D over gloo: values and scales arrive as they were, in half the bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from fakes_kv_peers import (
    FIRST_TOKENS,
    LONG_S,
    SPEC,
    DecodePeer,
    PrefillPeer,
    random_storage,
    transfer_config,
)
from tandem_kernels.reference import ReferenceKernels

from core.kv_partition import kv_heads_of_rank
from core.kv_spec import KVGroup, KVSpec
from kv_cache.storage import KVStorage
from kv_transfer.events import LeaseEnded
from kv_transfer.layout import plan_routes
from kv_transfer.link import DataLink
from kv_transfer.staging import BlockFormat, Lane, Staging, StagingSize, assemble
from kv_transfer.torch_link import TorchLinkMaker

FOUR_HEADS = KVSpec((KVGroup(num_layers=2, num_kv_heads=4, head_dim=16),), 16, "int8")
Peers = Callable[[KVSpec], tuple[PrefillPeer, DecodePeer]]


@pytest.fixture
def peers() -> Iterator[Peers]:
    """Makes a P and a D that talk over gloo, and stops both afterwards."""
    made: list[PrefillPeer | DecodePeer] = []

    def make(spec: KVSpec) -> tuple[PrefillPeer, DecodePeer]:
        maker, config = TorchLinkMaker(host="127.0.0.1", backend="gloo"), transfer_config()
        p, d = PrefillPeer(maker, config, spec=spec), DecodePeer(maker, config, spec=spec)
        made.extend((d, p))
        return p, d

    yield make
    for peer in made:
        peer.stop()


def pull(p: PrefillPeer, d: DecodePeer, source: list[int], target: list[int]) -> None:
    d.receiver.pull(p.offer("t", len(source)), 0)
    p.sender.grant("t", 0, source[:2])
    p.sender.grant("t", 2, source[2:])
    p.sender.close("t", FIRST_TOKENS)
    d.receive(target)
    p.inbox.take(LeaseEnded)  # P has counted what it sent


@pytest.mark.parametrize("dtype", ["int8", "fp8"])
def test_pulled_blocks_mean_what_they_meant(peers: Peers, dtype: str) -> None:
    p, d = peers(replace(SPEC, dtype=dtype))
    source, target = [9, 0, 33, 7, 12, 5, 1], [60, 2, 3, 4, 41, 0, 8]
    k, v = torch.randn(2, 4 * len(source), 2, 4) * 10
    slots = torch.tensor([4 * block + token for block in source for token in range(4)])
    ReferenceKernels().write_kv(k, v, p.storage.layer(1), slots)
    pull(p, d, source, target)
    assert torch.equal(d.storage.pack(target), p.storage.pack(source))
    ours, theirs = d.storage.layer(1), p.storage.layer(1)
    assert ours.v_scales is not None and theirs.v_scales is not None
    assert torch.equal(ours.v[target].view(torch.uint8), theirs.v[source].view(torch.uint8))
    assert torch.equal(ours.v_scales[target], theirs.v_scales[source])


def test_int8_moves_half_the_bytes_and_the_scales(peers: Peers) -> None:
    num_bytes = {}
    for dtype in ("int8", "bfloat16"):
        p, d = peers(KVSpec((KVGroup(2, 2, 16),), 4, dtype))
        pull(p, d, [3, 1, 2], [5, 6, 7])
        num_bytes[dtype] = p.stats.totals().num_bytes
        assert d.stats.totals().num_bytes == num_bytes[dtype] == 3 * p.storage.bytes_per_block
    num_rows = 3 * 4 * 2 * 2 * 2  # blocks, tokens, layers, k/v, heads
    assert num_bytes == {"bfloat16": num_rows * 16 * 2, "int8": num_rows * (16 + 2)}


@contextmanager
def gloo_pair(maker: TorchLinkMaker, name: str) -> Iterator[tuple[DataLink, DataLink]]:
    with ThreadPoolExecutor(1) as threads:
        accepting = threads.submit(maker.accept, name, LONG_S)
        receiving = maker.dial(maker.host(), name, LONG_S)
        sending = accepting.result(LONG_S)
    yield sending, receiving
    sending.close()
    receiving.close()


@pytest.mark.parametrize(("prefill_ranks", "decode_ranks"), [(3, 1), (1, 3), (2, 3), (3, 2)])
def test_scales_go_with_their_heads_to_ranks_that_share_them_unevenly(
    prefill_ranks: int, decode_ranks: int
) -> None:
    """Four heads on 1, 2 and 3 ranks: 4; 2 and 2; 2, 1 and 1."""
    maker = TorchLinkMaker(host="127.0.0.1", backend="gloo")
    model = random_storage(3, FOUR_HEADS)
    senders, sender_heads = ranks(prefill_ranks)
    receivers, receiver_heads = ranks(decode_ranks)
    source, target = [4, 11, 0], [1, 6, 2]
    for storage, heads in zip(senders, sender_heads, strict=True):
        storage.unpack(source, model.pack(source, slice(heads[0], heads[-1] + 1)))
    for rank, storage in enumerate(receivers):
        routes = [
            route
            for route in plan_routes(sender_heads, receiver_heads)
            if route.decode_rank == rank
        ]
        size = StagingSize(num_slots=2, num_blocks=4)
        block_format = BlockFormat.of(storage)
        lanes = []
        for index, route in enumerate(routes):
            staging = Staging(block_format, size, num_heads=route.num_heads, backend="gloo")
            with gloo_pair(maker, f"{route}") as (sending, receiving):
                packed = senders[route.prefill_rank].pack(source, route.prefill_heads)
                sent = sending.send(packed)
                receiving.recv(staging.slot(1, 3)).wait(LONG_S)
                sent.wait(LONG_S)
            lanes.append(Lane(index, receiving, staging, route.decode_heads))
        whole = Staging(block_format, size, num_heads=storage.num_kv_heads, backend="gloo")
        storage.unpack(target, assemble(lanes, whole, 1, 3))
        heads = receiver_heads[rank]
        expected = model.pack(source, slice(heads[0], heads[-1] + 1))
        assert torch.equal(storage.pack(target), expected)
    maker.close()


def ranks(tp_size: int) -> tuple[list[KVStorage], list[range]]:
    """Empty storages of a group's ranks, and the heads of each."""
    heads = [kv_heads_of_rank(4, tp_size, rank) for rank in range(tp_size)]
    return [KVStorage(FOUR_HEADS, 12, num_kv_heads_local=len(share)) for share in heads], heads
