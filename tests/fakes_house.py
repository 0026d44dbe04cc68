"""A whole router in this process, with real HTTP and gRPC ports and fake workers behind it."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import openai
from fakes_language import FakeLanguage
from fakes_pull import DEADLINE_S, FakeKv
from fakes_worker import FakeWorker, Trap

from core.config import Config
from core.request import Phase
from router.server import RouterPorts, RouterServer
from state.memory import MemoryStore
from state.store import Store
from text.card import ModelCard
from text.chat_template import ChatTemplate
from text.tokenizer import Tokenizer

MODEL = "fake"


@dataclass(frozen=True)
class Texts:
    """What the real default model brings, without its weights."""

    card: ModelCard
    tokenizer: Tokenizer
    template: ChatTemplate


@dataclass
class House:
    """Everything a test talks to."""

    router: RouterServer
    ports: RouterPorts
    store: Store
    http: httpx.AsyncClient
    openai: openai.AsyncOpenAI
    kv: FakeKv
    prefill: Sequence[FakeWorker]
    decode: Sequence[FakeWorker]

    @property
    def p(self) -> FakeWorker:
        return self.prefill[0]

    @property
    def d(self) -> FakeWorker:
        return self.decode[0]

    async def until_connected(self, count: int) -> None:
        """Until the router can give work to this many workers."""
        await self.until(lambda: len(self.router.fleet.views()) == count)

    async def restart(self, worker: FakeWorker) -> None:
        """A dead worker comes back as a new incarnation at its old address."""
        member = await worker.start()
        await self.store.announce(member, ttl_s=3600)
        await self.until(lambda: any(v.epoch == member.epoch for v in self.router.fleet.views()))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits for a change of the fleet that makes the condition true."""
        changed = asyncio.Event()
        self.router.fleet.watch(changed.set)
        try:
            async with asyncio.timeout(DEADLINE_S):
                while not condition():
                    changed.clear()
                    await changed.wait()
        finally:
            self.router.fleet.unwatch(changed.set)


@contextlib.asynccontextmanager
async def house(
    texts: Texts,
    *,
    prefill: int = 1,
    decode: int = 1,
    overrides: dict[str, dict[str, object]] | None = None,
    store: Store | None = None,
    ready: bool = True,
    language: FakeLanguage | None = None,
    trap: Trap | None = None,
    num_cached_tokens: int = 0,
    wall: Callable[[], float] = time.time,
) -> AsyncIterator[House]:
    """A router with `prefill` and `decode` fake workers; by default it has met them all."""
    kv, store = FakeKv(), store or MemoryStore()

    def pool(role: Phase, count: int) -> list[FakeWorker]:
        return [
            FakeWorker(
                role,
                kv,
                language or FakeLanguage(),
                worker_id=f"{role}-{i}",
                num_cached_tokens=num_cached_tokens,
                trap=trap or Trap(),
            )
            for i in range(count)
        ]

    ps, ds = pool(Phase.PREFILL, prefill), pool(Phase.DECODE, decode)
    own = tempfile.TemporaryDirectory()
    config = _config(overrides or {}, Path(own.name))
    router = RouterServer(config, texts.card, texts.tokenizer, texts.template, store, wall=wall)
    try:
        for worker in (*ps, *ds):
            await store.announce(await worker.start(), ttl_s=3600)
        ports = await router.start()
        url = f"http://127.0.0.1:{ports.http}"
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        async with client, httpx.AsyncClient(base_url=url, timeout=DEADLINE_S) as http:
            made = House(router, ports, store, http, client, kv, ps, ds)
            if ready:
                await made.until_connected(prefill + decode)
            yield made
    finally:
        await router.stop(1.0)
        for worker in (*ps, *ds):
            await worker.die()
        own.cleanup()


def _config(overrides: dict[str, dict[str, object]], batch_dir: Path) -> Config:
    base: dict[str, dict[str, object]] = {
        "model": {"served_model_name": MODEL},
        "router": {"http_port": 0, "grpc_port": 0},
        "worker": {"heartbeat_s": 0.05},
        "batch": {"dir": str(batch_dir)},
    }
    for section, values in overrides.items():
        base[section] = base.get(section, {}) | values
    return Config.model_validate(base)
