"""A real worker whose steps a test can watch, hold and spoil, and whose messages it can wait for.

Only the executor and the step loop's inbox are wrapped; everything else is as in production.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import cast

import grpc
from fakes_loop_thread import DEADLINE_S

from cluster.worker_shell import WorkerShell, _Parts
from core.clock import MonotonicClock
from core.config import Config
from core.request import Phase
from engine.batch import StepInput
from engine.builder import Engine
from engine.runner import ModelRunner
from engine.sample_row import SampleRow
from engine.sampler import NonFiniteLogitsError, Sampled
from kv_transfer.stats import TransferTotals
from protos import worker_pb2, worker_pb2_grpc
from state.store import Member, Store


class Steps:
    """Steps computed so far, and a gate before the next one. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._num_held: int | None = None
        self._waiting = False
        self._spoil = 0
        self.num_tokens: list[int] = []
        """Of every step that was computed."""

    def around(self, runner: ModelRunner) -> ModelRunner:
        return cast(ModelRunner, _Executor(self, runner))

    def hold(self, *, after: int = 0) -> None:
        """Lets `after` more steps pass and keeps those behind them."""
        with self._changed:
            self._num_held = len(self.num_tokens) + after
            self._waiting = self._waiting and self._is_held()
            self._changed.notify_all()

    def release(self) -> None:
        with self._changed:
            self._num_held = None
            self._changed.notify_all()

    def spoil(self, num_steps: int) -> None:
        """The next steps that sample give no finite logits."""
        self._spoil = num_steps

    async def until_held(self) -> None:
        """A step waits at the gate."""
        await asyncio.to_thread(self._wait, lambda: self._waiting)

    def pass_gate(self, step: StepInput, rows: list[SampleRow]) -> None:
        """Called by the step loop before it computes."""
        with self._changed:
            self._waiting = self._is_held()
            self._changed.notify_all()
            self._wait(lambda: not self._is_held())
            self._waiting = False
            self.num_tokens.append(len(step.token_ids))
            if rows and self._spoil:
                self._spoil -= 1
                raise NonFiniteLogitsError(tuple(range(len(rows))))

    def _is_held(self) -> bool:
        return self._num_held is not None and len(self.num_tokens) >= self._num_held

    def _wait(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, DEADLINE_S), "it never came to that"


class _Executor:
    def __init__(self, steps: Steps, runner: ModelRunner) -> None:
        self._steps = steps
        self._runner = runner

    def execute(self, step: StepInput, rows: list[SampleRow]) -> list[Sampled]:
        self._steps.pass_gate(step, rows)
        return self._runner.execute(step, rows)


class Posted:
    """What routers sent to the step loop, in order. Lives on the event loop."""

    def __init__(self) -> None:
        self.messages: list[object] = []
        self._arrived = asyncio.Event()

    def count(self, kind: type[object]) -> int:
        return sum(isinstance(message, kind) for message in self.messages)

    async def until(self, kind: type[object], count: int = 1) -> None:
        """So many messages of this kind have been posted."""
        async with asyncio.timeout(DEADLINE_S):
            while self.count(kind) < count:
                self._arrived.clear()
                await self._arrived.wait()

    def clear(self) -> None:
        self.messages.clear()

    def note(self, message: object) -> None:
        self.messages.append(message)
        self._arrived.set()


class SkippingClock(MonotonicClock):
    """Goes as the machine's does, and further ahead whenever a test says so."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def now(self) -> float:
        return super().now() + self.ahead_s


class ObservedWorker(WorkerShell):
    """A `WorkerShell` with open books."""

    def __init__(self, config: Config, role: Phase, worker_id: str, store: Store) -> None:
        super().__init__(config, role, worker_id, store)
        self.role = role
        self._clock = self.clock = SkippingClock()
        self.steps = Steps()
        self.posted = Posted()

    @property
    def parts(self) -> _Parts:
        assert self._parts is not None, "not started, or stopped"
        return self._parts

    @property
    def member(self) -> Member:
        return self._member(self.parts.engine)

    @property
    def transferred(self) -> TransferTotals:
        """Totals of this worker's half of the transfers."""
        return self.parts.sender._stats.totals()

    @property
    def num_leases(self) -> int:
        return self.parts.sender.num_leases

    async def until_idle(self) -> None:
        """Nothing that came before is left unfinished, leases included."""
        idle = asyncio.Event()
        loop = asyncio.get_running_loop()
        self.parts.step_loop.when_idle(lambda: loop.call_soon_threadsafe(idle.set))
        async with asyncio.timeout(DEADLINE_S):
            await idle.wait()

    async def audit(self) -> worker_pb2.AuditKvReply:
        """What the worker says of its blocks, over gRPC."""
        async with grpc.aio.insecure_channel(self.member.address) as channel:
            stub: worker_pb2_grpc.WorkerAsyncStub = worker_pb2_grpc.WorkerStub(channel)
            return await stub.AuditKv(worker_pb2.AuditKvRequest(), timeout=DEADLINE_S)

    def _build_engine(self, progress: Callable[[str], None]) -> Engine:
        engine = super()._build_engine(progress)
        return replace(engine, runner=self.steps.around(engine.runner))

    def _assemble(
        self, engine: Engine, server: grpc.aio.Server, loop: asyncio.AbstractEventLoop
    ) -> _Parts:
        parts = super()._assemble(engine, server, loop)
        post = parts.step_loop.post

        def posted(message: object) -> None:
            post(message)
            loop.call_soon_threadsafe(self.posted.note, message)

        # The worker's gRPC service looks it up at every call; transfers have it already.
        parts.step_loop.post = posted  # type: ignore[method-assign]
        return parts
