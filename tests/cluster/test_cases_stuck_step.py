"""A step that never ends: readiness says so, liveness does not, and nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import grpc.aio
import pytest
from fakes_cases import CaseHouse, case_house, check_same, settings, some_tokens
from fakes_loop_thread import DEADLINE_S
from fakes_observed_worker import ObservedWorker
from grpc_health.v1 import health_pb2, health_pb2_grpc

from core.config import WorkerConfig
from core.request import Phase
from protos.health import LIVENESS, READINESS

PROMPT = some_tokens(70, seed=3)
SERVING, NOT_SERVING = (
    health_pb2.HealthCheckResponse.SERVING,
    health_pb2.HealthCheckResponse.NOT_SERVING,
)


@pytest.fixture(params=[Phase.PREFILL, Phase.DECODE])
def scene(model: Path, request: pytest.FixtureRequest) -> Iterator[tuple[CaseHouse, Phase]]:
    """The second step of one worker does not end by itself."""
    role: Phase = request.param
    overrides = (
        f"faults.spec=step:delay=100000:after=1:once:worker={role.value}-0",
        "worker.stuck_after_s=0.5",
        # The router is not to lose a worker that says nothing new, nor one of a busy machine.
        "worker.heartbeat_s=20",
        "router.no_worker_timeout_s=1000",
    )
    with case_house(settings(model, *overrides)) as house:
        yield house, role
        end_delays(house.p if role is Phase.PREFILL else house.d)


def end_delays(worker: ObservedWorker) -> None:
    """Its step goes on."""
    assert worker._faults is not None
    worker._faults.end_delays()


async def health(worker: ObservedWorker, service: str) -> int:
    async with grpc.aio.insecure_channel(worker.member.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service=service)
        reply = await stub.Check(request, timeout=DEADLINE_S)
        return int(reply.status)


def test_a_stuck_worker_is_not_ready_and_lives_and_goes_on_where_it_was(
    scene: tuple[CaseHouse, Phase],
) -> None:
    """Case 10. While work is pending, readiness is the age of the last step."""
    house, role = scene
    worker = house.p if role is Phase.PREFILL else house.d

    def says_ready() -> bool:
        loads = house.router.server.fleet.loads()
        return next(x.ready for m, x in loads if m.worker_id == worker.member.worker_id)

    def all_say_ready() -> bool:
        return all(load.ready for _, load in house.router.server.fleet.loads())

    async def status(path: str) -> int:
        return (await house.router.http.get(path)).status_code

    async def test() -> None:
        assert (await status("/ready"), await health(worker, READINESS)) == (200, SERVING)
        await house.ask(PROMPT, max_tokens=2)
        asking = asyncio.create_task(house.ask(PROMPT, max_tokens=9, cache_salt="other"))
        await house.until(lambda: not says_ready())
        assert (await status("/ready"), await health(worker, READINESS)) == (503, NOT_SERVING)
        assert (await status("/live"), await health(worker, LIVENESS)) == (200, SERVING)
        assert not asking.done()
        end_delays(worker)
        answer = await asking
        await house.until(all_say_ready)
        assert (await status("/ready"), await health(worker, READINESS)) == (200, SERVING)
        check_same(answer, await house.ask(PROMPT, max_tokens=9, cache_salt="alone"))
        await house.check_whole()

    house.run(test())


def test_by_default_it_is_told_within_five_seconds() -> None:
    """The worker's own word, and a few reports on their way to the router."""
    worker = WorkerConfig()
    assert worker.stuck_after_s + 5 * worker.load_report_s < 5
