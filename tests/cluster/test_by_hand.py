"""Workers and router as processes of their own on one Redis, and how signals end them."""

from __future__ import annotations

import asyncio
import signal
import time
import uuid
from collections.abc import Callable

import fakes_process
import httpx
import pytest
from fakes_process import Child, child, python

from cluster.by_hand import EXIT_REPLACE
from cluster.signals import EXIT_OVERDUE
from cluster.store_factory import connect_store
from core.config import StateConfig
from core.errors import ConfigError
from state.redis_store import RedisStore
from state.store import Member

WORKER = """
import asyncio, sys
import fakes_cluster
from cluster.by_hand import run_worker
from core.config import load_config
from core.request import Phase
maker, name, *overrides = sys.argv[1:]
config = load_config(environ={}, overrides=["state.backend=redis", *overrides])
say = lambda member: print("ready", member.address, flush=True)
make = getattr(fakes_cluster, maker)
sys.exit(asyncio.run(run_worker(config, Phase.PREFILL, name, make=make, on_ready=say)))
"""
ROUTER = """
import asyncio, sys
import fakes_cluster
from cluster.by_hand import run_router
from core.config import load_config
config = load_config(environ={}, overrides=["state.backend=redis", *sys.argv[1:]])
say = lambda endpoints: print("ready", endpoints.http, flush=True)
sys.exit(asyncio.run(run_router(config, make=fakes_cluster.make_router, on_ready=say)))
"""


@pytest.fixture
def state(redis_url: str) -> StateConfig:
    return StateConfig(backend="redis", redis_url=redis_url, namespace=uuid.uuid4().hex)


PATIENT = "worker.heartbeat_s=20"
"""A process that gets no core for a while stays a member."""


def settings(state: StateConfig, *more: str) -> list[str]:
    shared = [f"state.redis_url={state.redis_url}", f"state.namespace={state.namespace}"]
    return [*shared, PATIENT, *more]


def members(state: StateConfig) -> tuple[Member, ...]:
    async def look() -> tuple[Member, ...]:
        store = RedisStore(state.redis_url, state.namespace, 20.0)
        try:
            return await store.members()
        finally:
            await store.close()

    return asyncio.run(look())


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + fakes_process.DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline


def address_of(started: Child) -> str:
    return started.wait_for("ready").split()[1]


def test_processes_started_by_hand_find_each_other(state: StateConfig) -> None:
    worker = [*python(WORKER), "make_worker", "prefill-a", *settings(state)]
    router = [*python(ROUTER), *settings(state, "router.http_port=0")]
    with child(worker) as first, child(router) as second:
        address_of(first)
        http = address_of(second)
        assert httpx.get(f"http://{http}/", timeout=20.0).json() == ["prefill-a"]
        for started in (first, second):
            started.process.send_signal(signal.SIGTERM)
        assert (first.end(), second.end()) == (0, 0)
    assert members(state) == ()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_withdraws_the_worker(
    state: StateConfig, number: signal.Signals
) -> None:
    with child([*python(WORKER), "make_worker", "w", *settings(state)]) as started:
        address_of(started)
        assert [member.worker_id for member in members(state)] == ["w"]
        started.process.send_signal(number)
        assert started.end() == 0
    assert members(state) == ()


def test_a_worker_that_cannot_drain_still_ends_within_the_grace(state: StateConfig) -> None:
    grace = ("worker.drain_timeout_s=0.5", "cluster.stop_timeout_s=0.5")
    with child([*python(WORKER), "make_stuck_worker", "w", *settings(state, *grace)]) as started:
        address_of(started)
        started.process.send_signal(signal.SIGTERM)
        assert started.end() == EXIT_OVERDUE


def test_a_second_signal_skips_the_drain(state: StateConfig) -> None:
    long = ("worker.drain_timeout_s=1000", "cluster.stop_timeout_s=1000")
    command = [*python(WORKER), "make_slow_worker", "w", *settings(state, *long)]
    with child(command) as started:
        address_of(started)
        started.process.send_signal(signal.SIGTERM)
        started.wait_for("draining")
        started.process.send_signal(signal.SIGTERM)
        assert started.end() == 0


def test_a_signal_during_the_start_ends_it(state: StateConfig) -> None:
    with child([*python(WORKER), "make_loading_worker", "w", *settings(state)]) as started:
        started.wait_for("loading")
        started.process.send_signal(signal.SIGTERM)
        assert started.end() == 0
    assert members(state) == ()


def test_a_worker_whose_step_loop_dies_ends_with_a_status(state: StateConfig) -> None:
    with child([*python(WORKER), "make_failing_worker", "w", *settings(state)]) as started:
        assert started.end() == 1
    assert "step loop died" in started.output
    assert members(state) == ()


@pytest.mark.parametrize(
    ("maker", "status"), [("make_retired_worker", 0), ("make_replaced_worker", EXIT_REPLACE)]
)
def test_a_worker_that_an_operator_drained_ends_and_says_whether_it_is_wanted_again(
    state: StateConfig, maker: str, status: int
) -> None:
    with child([*python(WORKER), maker, "w", *settings(state)]) as started:
        assert started.end() == status
    assert members(state) == ()


def test_a_start_that_is_refused_says_why(state: StateConfig) -> None:
    with child([*python(WORKER), "make_refusing_worker", "w", *settings(state)]) as started:
        assert started.end() == 1
    assert "needs 80 GiB, has 8 GiB" in started.output


def test_a_killed_worker_vanishes_after_three_heartbeats(state: StateConfig) -> None:
    command = [*python(WORKER), "make_worker", "w", *settings(state, "worker.heartbeat_s=0.2")]
    with child(command) as started:
        address_of(started)
        until(lambda: bool(members(state)))  # late heartbeats may have cost it that for a moment
        started.process.kill()
        started.end()
    until(lambda: not members(state))


def test_the_memory_backend_is_refused_for_processes_by_hand() -> None:
    with pytest.raises(ConfigError, match=r"state\.backend=redis"):
        connect_store(StateConfig())
