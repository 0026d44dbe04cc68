"""What is measured beside each other, each before a synthetic worker of its own kind.

tandem         our router, as every Tandem has it      before worker.py
vllm-router    vLLM's, in an environment of its own    before http_worker.py
no router      the client asks http_worker.py itself: what client and worker take
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.client import Target, prepare
from bench.front.http_worker import MODEL
from bench.front.process import listening
from bench.peers.client import PeerClient
from bench.peers.places import Peer
from bench.peers.server import first_answer, running
from bench.runner import LoopTimer
from bench.tandem_server import free_port
from bench.workload import Segment, WorkItem
from core.clock import MonotonicClock

TANDEM, NO_ROUTER = "tandem", "no router"
VLLM_ROUTER: Peer = "vllm-router"
STEP_S = 0.01
_START_TIMEOUT_S = 180.0


@dataclass(frozen=True, slots=True)
class Front:
    """Where a client asks, and whose CPU time counts."""

    name: str
    target: Target
    pid: int | None
    """Of the router; None where there is none."""


@contextlib.asynccontextmanager
async def tandem(settings: Sequence[str]) -> AsyncIterator[Front]:
    """Raises ServerError."""
    async with (
        listening("bench.front.worker", str(STEP_S)) as (_, worker),
        listening("bench.front.router", worker, *settings) as (pid, base_url),
    ):
        yield Front(TANDEM, _target(base_url.removesuffix("/v1")), pid)


@contextlib.asynccontextmanager
async def http_worker() -> AsyncIterator[Front]:
    """Raises ServerError."""
    async with listening("bench.front.http_worker", str(STEP_S)) as (_, base_url):
        yield Front(NO_ROUTER, _target(base_url, MODEL), None)


@contextlib.asynccontextmanager
async def vllm_router(program: Path, worker: Front) -> AsyncIterator[Front]:
    """`program` before this worker, with its defaults. Raises ServerError."""
    clock = MonotonicClock()
    port = free_port()
    target = _target(f"http://127.0.0.1:{port}", MODEL)
    client, timer = PeerClient(target, clock), LoopTimer(clock)
    first = prepare(WorkItem(0, (Segment("start", 8),), 1), target, "start")
    with tempfile.TemporaryDirectory(prefix="tandem-front-") as directory:
        command = vllm_router_command(program, worker.target.base_url, port, free_port())
        async with running(command, Path(directory) / "log", timer) as server:
            try:
                await first_answer(server, client, first, timer, timeout_s=_START_TIMEOUT_S)
                yield Front(VLLM_ROUTER, target, server.pid)
            finally:
                client.close()


def vllm_router_command(program: Path, worker_url: str, port: int, metrics_port: int) -> list[str]:
    """Nothing is set but where it listens, how soon it looks for its worker, and silence."""
    return [
        *(str(program), "--host", "127.0.0.1", "--port", str(port)),
        *("--worker-urls", worker_url, "--worker-startup-check-interval", "1"),
        *("--prometheus-port", str(metrics_port), "--log-level", "error"),
    ]


def _target(base_url: str, model: str = "") -> Target:
    return Target(base_url, model=model, prompt_kind="words", ignore_eos=True)
