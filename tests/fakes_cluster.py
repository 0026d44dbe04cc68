"""Small real processes to fill a cluster with: a member that answers gRPC, a router on HTTP."""

from __future__ import annotations

import asyncio
import json
import uuid

import grpc
from grpc_health.v1 import health, health_pb2_grpc

from cluster.shell import Ending, Endpoints, MakeWorker, Progress, Router, Worker
from cluster.worker_heartbeat import Heartbeat
from core.config import Config, run_dir
from core.errors import CapacityError, WorkerLostError
from core.request import Phase
from engine.rendezvous import Rendezvous
from state.store import Member, Store


class StandInWorker:
    """A member of the cluster without an engine: it announces itself and keeps its heartbeat."""

    def __init__(self, config: Config, role: Phase, worker_id: str, store: Store) -> None:
        self._config = config
        self._role = role
        self._worker_id = worker_id
        self._epoch = uuid.uuid4().hex
        self._heartbeat = Heartbeat(store, config.worker.heartbeat_s)
        self._server = grpc.aio.server()
        self._over = asyncio.Event()
        self.drained = False

    async def open_group(self) -> Rendezvous:
        raise AssertionError("a stand-in has one rank")

    async def start(self, progress: Progress) -> Member:
        progress("loading weights")
        health_pb2_grpc.add_HealthServicer_to_server(health.aio.HealthServicer(), self._server)
        port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        progress("warming up")
        member = Member(
            self._worker_id, self._epoch, self._role, f"127.0.0.1:{port}", "stand-in", "key"
        )
        await self._heartbeat.start(member, patience_s=self._config.cluster.start_timeout_s)
        return member

    async def drain(self, timeout_s: float) -> None:
        await self._heartbeat.stop()
        self.drained = True

    async def stop(self, grace_s: float) -> None:
        await self._heartbeat.stop()
        await self._server.stop(grace_s)

    async def wait_ended(self) -> Ending:
        await self._over.wait()
        return Ending.RETIRED


class RefusingWorker(StandInWorker):
    """A worker whose model does not fit."""

    async def start(self, progress: Progress) -> Member:
        raise CapacityError("needs 80 GiB, has 8 GiB")


MAY_REFUSE = "may-refuse"


class AwaitedRefusal(RefusingWorker):
    """A worker whose model does not fit, which is seen once a file lies in the run directory."""

    async def start(self, progress: Progress) -> Member:
        while not (run_dir(self._config.cluster) / MAY_REFUSE).exists():
            await asyncio.sleep(0.02)
        return await super().start(progress)


class StuckWorker(StandInWorker):
    """A worker that cannot finish what it has, nor stop."""

    async def drain(self, timeout_s: float) -> None:
        await asyncio.Event().wait()

    async def stop(self, grace_s: float) -> None:
        await asyncio.Event().wait()


class SlowWorker(StandInWorker):
    """A worker that drains for ever, and stops at once."""

    async def drain(self, timeout_s: float) -> None:
        print("draining", flush=True)  # noqa: T201
        await asyncio.Event().wait()


class LoadingWorker(StandInWorker):
    """A worker that never finishes loading."""

    async def start(self, progress: Progress) -> Member:
        print("loading", flush=True)  # noqa: T201
        await asyncio.Event().wait()
        raise AssertionError("nobody sets this event")


class FailingWorker(StandInWorker):
    """A worker whose step loop dies as soon as it is ready."""

    async def wait_ended(self) -> Ending:
        raise WorkerLostError("the step loop died")


class RetiredWorker(StandInWorker):
    """A worker that an operator drained for good as soon as it was ready."""

    async def wait_ended(self) -> Ending:
        return Ending.RETIRED


class ReplacedWorker(StandInWorker):
    """A worker that an operator drained for its next life to begin."""

    async def wait_ended(self) -> Ending:
        return Ending.REPLACED


class StandInRouter:
    """Answers every HTTP request with the members it sees, as JSON."""

    def __init__(self, config: Config, store: Store) -> None:
        self._config = config
        self._store = store
        self._server: asyncio.Server | None = None
        self._over = asyncio.Event()

    async def wait_failed(self) -> None:
        await self._over.wait()

    async def start(self) -> Endpoints:
        host = self._config.router.http_host
        self._server = await asyncio.start_server(self._answer, host, self._config.router.http_port)
        port = self._server.sockets[0].getsockname()[1]
        return Endpoints(f"{host}:{port}", f"{host}:0")

    async def stop(self, grace_s: float) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        members = await self._store.members()
        body = json.dumps([member.worker_id for member in members]).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()
        await writer.wait_closed()


def _maker(kind: type[StandInWorker]) -> MakeWorker:
    async def make(config: Config, role: Phase, worker_id: str, store: Store) -> Worker:
        return kind(config, role, worker_id, store)

    return make


make_worker = _maker(StandInWorker)
make_refusing_worker = _maker(RefusingWorker)
make_awaited_refusal = _maker(AwaitedRefusal)
make_stuck_worker = _maker(StuckWorker)
make_slow_worker = _maker(SlowWorker)
make_loading_worker = _maker(LoadingWorker)
make_retired_worker = _maker(RetiredWorker)
make_replaced_worker = _maker(ReplacedWorker)
make_failing_worker = _maker(FailingWorker)


async def make_router(config: Config, store: Store) -> Router:
    return StandInRouter(config, store)
