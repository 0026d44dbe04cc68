"""A group fails as one: whichever rank is lost, its leader says so, and soon."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import pytest
from fakes_golden import Ask
from fakes_loop_thread import DEADLINE_S
from fakes_observed_worker import ObservedWorker
from fakes_real_house import settings
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cluster.child_ranks import ChildRanks
from core.errors import ConfigError, WorkerLostError
from core.request import Phase, SamplingParams
from engine.role import Submit
from protos.health import LIVENESS, READINESS
from state.memory import MemoryStore

ASK = Ask("it", (1, 2, 3), SamplingParams(max_tokens=400, ignore_eos=True))
SHORT = Ask("it", (1, 2, 3), SamplingParams(max_tokens=2, ignore_eos=True))


@contextlib.asynccontextmanager
async def group(model: Path, *overrides: str) -> AsyncIterator[tuple[ObservedWorker, list[int]]]:
    """A decode worker of two ranks, and the processes of the other ranks."""
    # Ranks take turns on a busy machine
    patient = ("parallel.tensor_parallel_size=2", "parallel.step_timeout_s=120")
    config = settings(*patient, f"model.model={model}", *overrides)
    worker = ObservedWorker(config, Phase.DECODE, "decode-0", MemoryStore())
    ranks = ChildRanks(config, "decode-0", 2)
    try:
        await ranks.lead(worker, lambda _: None)
        yield worker, ranks.pids
    finally:
        await worker.stop(2.0)
        await ranks.end(2.0)


async def end_of(worker: ObservedWorker) -> None:
    async with asyncio.timeout(DEADLINE_S):
        await worker.wait_ended()


def test_a_killed_rank_ends_its_group_while_nothing_is_computed(model: Path) -> None:
    async def scenario() -> None:
        async with group(model) as (worker, pids):
            os.kill(pids[0], signal.SIGKILL)
            with pytest.raises(WorkerLostError, match="rank 1 of the group is gone"):
                await end_of(worker)

    asyncio.run(scenario())


def test_a_stopped_rank_ends_its_group_at_the_steps_deadline(model: Path) -> None:
    async def scenario() -> None:
        async with group(model, "parallel.step_timeout_s=3") as (worker, pids):
            os.kill(pids[0], signal.SIGSTOP)
            worker.parts.step_loop.post(Submit(ASK.attempt((0,))))
            with pytest.raises(WorkerLostError, match="rank 0 of 2 lost its group"):
                await end_of(worker)

    asyncio.run(scenario())


def test_a_group_with_a_stopped_rank_is_not_ready_and_lives_and_goes_on_with_it(
    model: Path,
) -> None:
    """CASES 10, with one rank of several."""

    async def scenario() -> None:
        async with (
            group(model, "worker.stuck_after_s=0.3") as (worker, pids),
            grpc.aio.insecure_channel(worker.member.address) as channel,
            asyncio.timeout(DEADLINE_S),
        ):
            stub = health_pb2_grpc.HealthStub(channel)
            ready = stub.Watch(health_pb2.HealthCheckRequest(service=READINESS))
            assert (await ready.read()).status == health_pb2.HealthCheckResponse.SERVING
            os.kill(pids[0], signal.SIGSTOP)
            worker.parts.step_loop.post(Submit(SHORT.attempt((0,))))
            assert (await ready.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
            live = await stub.Check(health_pb2.HealthCheckRequest(service=LIVENESS))
            assert live.status == health_pb2.HealthCheckResponse.SERVING
            os.kill(pids[0], signal.SIGCONT)
            assert (await ready.read()).status == health_pb2.HealthCheckResponse.SERVING
            await worker.until_idle()
            ready.cancel()

    asyncio.run(scenario())


def test_a_rank_that_cannot_start_ends_the_start_of_all() -> None:
    async def scenario() -> None:
        async with group(Path("/nowhere")):
            pass

    with pytest.raises((WorkerLostError, ConfigError)):
        asyncio.run(scenario())
