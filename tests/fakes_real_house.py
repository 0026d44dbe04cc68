"""The real house in this process: workers with engines, routers, gRPC, gloo, and its clients.

LoopThread     the event loop that workers and routers live in, while tests compute elsewhere
worker, front  a worker shell; a router with an HTTP and a gRPC client
audit          what a worker says of its blocks, over gRPC
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import grpc.aio
import httpx
from fakes_golden import Answer, Ask, ChoiceAnswer
from fakes_loop_thread import DEADLINE_S, LoopThread

from cluster.child_ranks import ChildRanks
from cluster.plan import num_ranks
from cluster.router_process import load_texts
from cluster.store_factory import connect_store
from cluster.worker_shell import WorkerShell
from core.config import Config, StateConfig, load_config
from core.request import Phase, TokenLogprobs
from protos import inference_pb2 as pb
from protos import inference_pb2_grpc, worker_pb2, worker_pb2_grpc
from router.server import RouterServer
from state.memory import MemoryStore
from state.store import Member, Store

T = TypeVar("T")

BLOCK_SIZE = 16
CHUNK_TOKENS = 64
MAX_MODEL_LEN = 512
SETTINGS = [
    "router.http_port=0",
    "router.grpc_port=0",
    "router.no_worker_timeout_s=60",
    "parallel.num_threads=1",
    "model.dtype=float32",
    f"model.max_model_len={MAX_MODEL_LEN}",
    "cache.num_blocks=512",
    f"scheduler.prefill_chunk_tokens={CHUNK_TOKENS}",
    "scheduler.max_num_batched_tokens=128",
    "scheduler.max_num_seqs=48",
    # A busy machine must not look like a dead one.
    "worker.heartbeat_s=10",
    "worker.stuck_after_s=60",
    "kv_transfer.timeout_s=30",
]


def settings(*overrides: str) -> Config:
    return load_config(environ={}, overrides=[*SETTINGS, *overrides])


@dataclass(frozen=True)
class Front:
    """One router and how clients reach it."""

    server: RouterServer
    model: str
    http: httpx.AsyncClient
    stub: inference_pb2_grpc.InferenceAsyncStub

    async def complete(
        self, ask: Ask, cache_salt: str = "", on_delta: Callable[[], None] = lambda: None
    ) -> Answer:
        """The whole answer over the public gRPC API, which tells token ids."""
        choices = [ChoiceAnswer([], []) for _ in range(ask.n)]
        async for event in self.stub.Complete(ask.to_wire(self.model, cache_salt)):
            if event.HasField("usage"):
                return Answer(choices, event.usage)
            take(choices, event.delta)
            on_delta()
        raise AssertionError(f"{ask.name}: the stream ended without a usage")

    async def until_connected(self, num_workers: int) -> None:
        """Until the router can give work to this many workers."""
        fleet, changed = self.server.fleet, asyncio.Event()
        fleet.watch(changed.set)
        try:
            while len(fleet.views()) < num_workers:
                changed.clear()
                await changed.wait()
        finally:
            fleet.unwatch(changed.set)


def take(choices: list[ChoiceAnswer], delta: pb.Delta) -> None:
    """Adds a delta to what its choice has so far; nothing may follow a finish reason."""
    choice = choices[delta.choice]
    assert not choice.finish_reason, "a token came after the end"
    choice.token_ids.extend(delta.token_ids)
    for entry in delta.logprobs:
        top = tuple((other.token_id, other.logprob) for other in entry.top)
        choice.logprobs.append(TokenLogprobs(entry.logprob, top))
    choice.finish_reason = delta.finish_reason


class RealHouse:
    """What a test starts, it ends with the `with` block of `real_house`, newest first."""

    def __init__(self, loop: LoopThread, stack: contextlib.AsyncExitStack) -> None:
        self.loop = loop
        self._stack = stack

    def worker(self, config: Config, role: Phase, store: Store, number: int = 0) -> Member:
        return self._enter(_worker(config, role, store, f"{role.value}-{number}"))[1]

    def shell(self, config: Config, role: Phase, store: Store, worker_id: str) -> WorkerShell:
        """A worker that a test may drain."""
        return self._enter(_worker(config, role, store, worker_id))[0]

    def front(self, config: Config, store: Store) -> Front:
        return self._enter(_front(config, store))

    def shared_store(self, state: StateConfig) -> Store:
        """The store that processes of their own share with this one."""
        return self._enter(_shared_store(state))

    def complete(self, front: Front, asks: Sequence[Ask], cache_salt: str = "") -> list[Answer]:
        """All of them at once."""

        async def together() -> list[Answer]:
            return await asyncio.gather(*(front.complete(ask, cache_salt) for ask in asks))

        return self.loop.run(together())

    def _enter(self, context: contextlib.AbstractAsyncContextManager[T]) -> T:
        return self.loop.run(self._stack.enter_async_context(context))


@contextlib.contextmanager
def real_house() -> Iterator[RealHouse]:
    with LoopThread() as loop:
        stack = contextlib.AsyncExitStack()
        try:
            yield RealHouse(loop, stack)
        finally:
            loop.run(stack.aclose())


@contextlib.asynccontextmanager
async def _worker(
    config: Config, role: Phase, store: Store, worker_id: str
) -> AsyncIterator[tuple[WorkerShell, Member]]:
    """Its other ranks, if the settings ask for any, are processes of their own."""
    shell = WorkerShell(config, role, worker_id, store)
    ranks = ChildRanks(config, worker_id, num_ranks(config, role))
    try:
        yield shell, await ranks.lead(shell, lambda _: None)
    finally:
        await shell.stop(8.0)
        await ranks.end(8.0)


@contextlib.asynccontextmanager
async def _front(config: Config, store: Store) -> AsyncIterator[Front]:
    card, tokenizer, template = await asyncio.to_thread(load_texts, config)
    server = RouterServer(config, card, tokenizer, template, store)
    try:
        ports = await server.start()
        http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{ports.http}", timeout=DEADLINE_S)
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{ports.grpc}")
        async with http, channel:
            yield Front(server, card.name, http, inference_pb2_grpc.InferenceStub(channel))
    finally:
        await server.stop(1.0)


@contextlib.asynccontextmanager
async def _shared_store(state: StateConfig) -> AsyncIterator[Store]:
    store = connect_store(state)
    try:
        yield store
    finally:
        await store.close()


@dataclass(frozen=True)
class PairHouse:
    """One P and one D, and a router for each way to use them."""

    house: RealHouse
    split: Front
    combined: Front
    workers: tuple[Member, Member]

    def check_whole(self) -> None:
        """Fails unless both pools come to rest with every block cached or free."""
        for member in self.workers:
            audit = self.house.loop.run(until_whole(member.address))
            unheld = audit.blocks_by_state["cached"] + audit.blocks_by_state["free"]
            assert unheld == audit.num_blocks


@contextlib.contextmanager
def pair_house(*decode_overrides: str, both: Sequence[str] = ()) -> Iterator[PairHouse]:
    """`decode_overrides` are settings of D alone, `both` of P and D."""
    config, store = settings(*both), MemoryStore()
    with real_house() as house:
        workers = (
            house.worker(config, Phase.PREFILL, store),
            house.worker(settings(*both, *decode_overrides), Phase.DECODE, store),
        )
        split = house.front(config, store)
        combined = house.front(settings("router.mode=combined"), store)
        for front in (split, combined):
            house.loop.run(front.until_connected(2))
        yield PairHouse(house, split, combined, workers)


def num_cachable_tokens(num_prompt_tokens: int) -> int:
    """What a cache gives of a prompt it knows: full blocks, but never the last token."""
    return BLOCK_SIZE * ((num_prompt_tokens - 1) // BLOCK_SIZE)


async def describe(address: str) -> worker_pb2.WorkerInfo:
    async with grpc.aio.insecure_channel(address) as channel:
        stub: worker_pb2_grpc.WorkerAsyncStub = worker_pb2_grpc.WorkerStub(channel)
        return await stub.Describe(worker_pb2.DescribeRequest(), timeout=DEADLINE_S)


async def until_whole(address: str) -> worker_pb2.AuditKvReply:
    """The worker's audit once nobody holds a block.

    A client has its answer before the last lease is given back, and nothing outside tells when that
    is. So it is asked again, each time after one more turn of its step loop.
    """
    async with grpc.aio.insecure_channel(address) as channel:
        stub: worker_pb2_grpc.WorkerAsyncStub = worker_pb2_grpc.WorkerStub(channel)
        async with asyncio.timeout(DEADLINE_S):
            while True:
                audit = await stub.AuditKv(worker_pb2.AuditKvRequest(), timeout=DEADLINE_S)
                assert audit.consistent, audit.problem
                if not audit.holders:
                    return audit
