"""The ranks of a worker as threads of this process, each with its share of the KV.

Ports, orders, data links and storages are real; plans are a queue that tests can hold up.
"""

from __future__ import annotations

import queue
import secrets
import threading
from collections.abc import Callable, Sequence
from functools import partial

from core.kv_partition import kv_heads_of_rank
from kv_cache.storage import KVStorage
from kv_transfer.link import LinkMaker
from kv_transfer.rank_link import OtherRanks, RankAddress
from kv_transfer.rank_port import RankPort

HOST = "127.0.0.1"


class RankThreads:
    """`storages[0]` is the leader's. `whole`: what is in all of them together, if anything is."""

    def __init__(
        self,
        size: int,
        model: KVStorage,
        make_links: Callable[[], LinkMaker],
        *,
        filled: bool,
    ) -> None:
        spec = model.spec
        (group,) = spec.groups
        self.heads = tuple(
            tuple(kv_heads_of_rank(group.num_kv_heads, size, rank)) for rank in range(size)
        )
        self.storages = [
            KVStorage(spec, model.num_blocks, num_kv_heads_local=len(heads)) for heads in self.heads
        ]
        if filled:
            every_block = range(model.num_blocks)
            for rank, storage in enumerate(self.storages):
                storage.unpack(every_block, model.pack(every_block, self.slice_of(rank)))
        token = secrets.token_bytes(32)
        self.ports = [RankPort(HOST, token) for _ in self.storages[1:]]
        self._makers = [make_links() for _ in self.ports]
        for port, storage, maker in zip(self.ports, self.storages[1:], self._makers, strict=True):
            port.serve(storage, maker)
        addresses = [RankAddress(i, HOST, port.port) for i, port in enumerate(self.ports, start=1)]
        self._plans: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._num_plans = 0
        self.ranks = OtherRanks(addresses, token, self._order_unpack, lambda: self._num_plans)
        self.may_plan = threading.Event()
        """Cleared: plans are on their way, and do not come."""
        self.may_plan.set()
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()

    def slice_of(self, rank: int) -> slice:
        """A rank's heads in the whole model."""
        return slice(self.heads[rank][0], self.heads[rank][-1] + 1)

    def flush(self) -> None:
        """Until all plans made so far have been followed."""
        followed = threading.Event()
        self._plans.put(followed.set)
        assert followed.wait(60.0)

    def stop(self) -> None:
        self.may_plan.set()
        self._plans.put(None)
        self._thread.join()
        for port, maker in zip(self.ports, self._makers, strict=True):
            port.close()
            maker.close()

    def _follow(self) -> None:
        while (plan := self._plans.get()) is not None:
            self.may_plan.wait()
            plan()

    def plan(self, *of_each: Callable[[], None]) -> None:
        """The next plan, as each of the other ranks follows it."""
        for port, follow in zip(self.ports, of_each, strict=True):
            self._plans.put(follow)
            self._plans.put(port.followed)
        self._num_plans += 1

    def _order_unpack(self, link_id: str, seq: int, blocks: Sequence[int]) -> None:
        self.plan(*(partial(port.unpack, link_id, seq, blocks) for port in self.ports))
