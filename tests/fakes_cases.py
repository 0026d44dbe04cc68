"""The real house as the cases of field reports see it: observed workers, clients that leave.

with case_house(settings) as house:          one P, one D, a router, all in one loop and thread
    house.run(some_async_test(house))
# left behind: nothing. Pools whole, no lease, no task, no thread: or the test fails here
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import httpx
from fakes_lasting_store import LastingStore
from fakes_loop_thread import DEADLINE_S, LoopThread
from fakes_observed_worker import ObservedWorker
from fakes_real_house import Front, RealHouse

from cluster.store_factory import connect_store
from core.config import Config, StateConfig, load_config
from core.load import LoadReport
from core.request import Phase
from state.memory import MemoryStore
from state.store import Store

T = TypeVar("T")
Json = dict[str, Any]

SETTINGS = (
    "router.http_port=0",
    "router.grpc_port=0",
    "parallel.num_threads=1",
    "model.dtype=float32",
    "scheduler.max_num_seqs=16",
    "cache.num_blocks=1024",
    # Every change of a pool is seen at once.
    "worker.load_report_s=0.02",
    "worker.heartbeat_s=0.5",
    # A busy machine must not look like a dead one.
    "worker.stuck_after_s=60",
    "kv_transfer.timeout_s=30",
    # A test that waited for a lease to expire would wait for ever.
    "kv_transfer.lease_s=10000",
)


def settings(model: object, *overrides: str) -> Config:
    """Settings of a small house that serves `model`; `overrides` are `section.key=value`."""
    return load_config(environ={}, overrides=[*SETTINGS, f"model.model={model}", *overrides])


SOON_S = 5.0
"""For what ends by itself once everything was told to stop; only what is left takes this long."""
TIE = 1e-3
"""Log-probabilities closer than this may come in either order: batches of different sizes sum in
different orders, and the byte model's sharp attention makes 1e-4 of that."""


class CaseHouse(RealHouse):
    """Workers with open books and a router; more of both can be added."""

    def __init__(
        self, loop: LoopThread, stack: contextlib.AsyncExitStack, config: Config, store: Store
    ) -> None:
        super().__init__(loop, stack)
        self.config = config
        self.store = store
        self.workers: list[ObservedWorker] = []
        self.front_: Front | None = None

    @property
    def router(self) -> Front:
        assert self.front_ is not None, "there is no router"
        return self.front_

    @property
    def p(self) -> ObservedWorker:
        return next(w for w in self.workers if w.role is Phase.PREFILL)

    @property
    def d(self) -> ObservedWorker:
        return next(w for w in self.workers if w.role is Phase.DECODE)

    async def stop(self, worker: ObservedWorker) -> None:
        """The worker leaves the house as one does that is told to stop, work or no work."""
        self.workers.remove(worker)
        await worker.stop(8.0)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run(work)

    def observe(self, config: Config, role: Phase, worker_id: str) -> ObservedWorker:
        """Starts a worker, which then belongs to the house."""
        return self.run(self.add_worker(config, role, worker_id))

    async def add_worker(self, config: Config, role: Phase, worker_id: str) -> ObservedWorker:
        """The same from within the loop."""
        worker = ObservedWorker(config, role, worker_id, self.store)
        return await self._stack.enter_async_context(self._observed(worker))

    def add_front(self, *overrides: str) -> Front:
        """Another router on the same workers."""
        model = self.config.model.model
        return self.front(settings(model, *overrides), self.store)

    async def ask(self, prompt: object, **fields: Any) -> Json:
        """The router's answer to `ask`."""
        return await ask(self.router, prompt, **fields)

    @contextlib.asynccontextmanager
    async def asking(self, prompt: object, **fields: Any) -> AsyncIterator[asyncio.Task[Json]]:
        """A request under way, whose client is gone at the end of the block."""
        task = asyncio.create_task(self.ask(prompt, **fields))
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits until what the workers report, or who they are, makes the condition true.

        Nothing is asked of the workers: what doesn't happen by itself is not seen.
        """
        fleet, changed = self.router.server.fleet, asyncio.Event()
        fleet.watch(changed.set)
        try:
            async with asyncio.timeout(DEADLINE_S):
                while not condition():
                    changed.clear()
                    await changed.wait()
        finally:
            fleet.unwatch(changed.set)

    def blocks(self, worker_id: str, *states: str) -> int:
        """Blocks in these states by the worker's last report; -1 if there is none."""
        for member, load in self.router.server.fleet.loads():
            if member.worker_id == worker_id:
                return sum(load.kv_blocks.get(state, 0) for state in states)
        return -1

    def reported(self, worker_id: str) -> LoadReport:
        """The worker's last report."""
        loads = self.router.server.fleet.loads()
        return next(load for member, load in loads if member.worker_id == worker_id)

    def held(self, worker_id: str) -> int:
        return self.blocks(worker_id, "importing", "leased", "running")

    async def metric(self, name: str, **labels: str) -> float:
        """Sum of the router's samples of this name that have these labels."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        lines = (await self.router.http.get("/metrics")).text.splitlines()
        return sum(
            float(line.split()[-1])
            for line in lines
            if line.split("{")[0].split(" ")[0] == name and all(w in line for w in wanted)
        )

    async def check_whole(self) -> None:
        """Everybody is done; no block is held, no lease open, nobody counted as inside."""
        assert await self.router.server.door.drained(DEADLINE_S)
        for worker in self.workers:
            await worker.until_idle()
            books = await worker.audit()
            assert books.consistent, books.problem
            assert not books.holders
            assert sum(books.blocks_by_state.values()) == books.num_blocks
            assert worker.num_leases == 0

    @contextlib.asynccontextmanager
    async def _observed(self, worker: ObservedWorker) -> AsyncIterator[ObservedWorker]:
        try:
            await worker.start(lambda _: None)
            self.workers.append(worker)
            yield worker
        finally:
            worker.steps.release()
            await worker.stop(8.0)


@contextlib.contextmanager
def case_house(
    config: Config,
    *,
    prefill: int = 1,
    decode: int = 1,
    decode_config: Config | None = None,
    members_expire: bool = False,
) -> Iterator[CaseHouse]:
    """A house of observed workers `prefill-0`, ..., `decode-0`, ..., which must end whole.

    It meets on the Redis of its settings, if they name one; else nobody else can join. Its own
    workers are members until they withdraw, unless members are to expire.
    """
    before = _threads()
    with LoopThread() as loop:
        stack = contextlib.AsyncExitStack()
        house = CaseHouse(loop, stack, config, loop.run(_open_store(config.state, members_expire)))
        try:
            for i in range(prefill):
                house.observe(config, Phase.PREFILL, f"prefill-{i}")
            for i in range(decode):
                house.observe(decode_config or config, Phase.DECODE, f"decode-{i}")
            house.front_ = house.front(config, house.store)
            loop.run(house.router.until_connected(prefill + decode))
            yield house
            loop.run(house.check_whole())
        finally:
            loop.run(stack.aclose())
            loop.run(house.store.close())
            loop.run(_others_end())
    for thread in _threads() - before:
        thread.join(SOON_S)
        assert not thread.is_alive(), f"{thread} is left"


async def ask(front: Front, prompt: object, **fields: Any) -> Json:
    """The answer of /v1/completions, greedy and with log-probabilities."""
    response = await post(front, prompt, **fields)
    assert response.status_code == 200, response.text
    answer: Json = response.json()
    return answer


async def post(front: Front, prompt: object, **fields: Any) -> httpx.Response:
    body = {"model": front.model, "prompt": prompt, "temperature": 0, "logprobs": 2} | fields
    return await front.http.post("/v1/completions", json=body)


@contextlib.asynccontextmanager
async def crowd(front: Front) -> AsyncIterator[Front]:
    """The same front for more clients at once than httpx connects by itself."""
    limits = httpx.Limits(max_connections=None)
    base_url = front.http.base_url
    async with httpx.AsyncClient(base_url=base_url, timeout=DEADLINE_S, limits=limits) as http:
        yield replace(front, http=http)


def events_of(response: httpx.Response) -> list[Json]:
    """Every object of a stream; its last line must say that it is done."""
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def tokens_of(answer: Json) -> list[list[str]]:
    """Names of the tokens of each choice."""
    return [choice["logprobs"]["tokens"] for choice in answer["choices"]]


def check_same(answer: Json, expected: Json) -> None:
    """Fails unless both greedy answers have the same tokens, or part at a tie."""
    for got, right in zip(answer["choices"], expected["choices"], strict=True):
        names, expected_names = got["logprobs"]["tokens"], right["logprobs"]["tokens"]
        differing = (
            i for i, (a, b) in enumerate(zip(names, expected_names, strict=False)) if a != b
        )
        position = next(differing, None)
        if position is None:
            assert len(names) == len(expected_names)
            assert got["finish_reason"] == right["finish_reason"]
            continue
        best = right["logprobs"]["top_logprobs"][position]
        place = f"position {position}: {names[position]!r} instead of one of {best}"
        assert names[position] in best, place
        assert abs(best[names[position]] - best[expected_names[position]]) < TIE, place


def some_tokens(num_tokens: int, seed: int = 0) -> list[int]:
    """A prompt of the byte model: letters without an end of text among them."""
    return [3 + (7 + seed * 31 + i * i * (seed + 3) + i) % 250 for i in range(num_tokens)]


async def _open_store(config: StateConfig, members_expire: bool) -> Store:
    store: Store = MemoryStore() if config.backend == "memory" else connect_store(config)
    return store if members_expire else LastingStore(store)


async def _others_end() -> None:
    """What is left ends by itself, or never: then the loop's own check tells of it."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=SOON_S)


def _threads() -> set[threading.Thread]:
    return {t for t in threading.enumerate() if t.name.startswith("tandem-")}


def together(works: Sequence[Coroutine[Any, Any, T]]) -> Coroutine[Any, Any, list[T]]:
    """All of them at once."""

    async def gathered() -> list[T]:
        return list(await asyncio.gather(*works))

    return gathered()
