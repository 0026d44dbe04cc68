"""What an operator sees of real workers, and does to them: probes, audits, metrics, drains."""

from __future__ import annotations

import asyncio
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import grpc.aio
import pytest
from fakes_cases import SETTINGS, CaseHouse, case_house, settings, some_tokens
from fakes_loop_thread import DEADLINE_S
from fakes_observed_worker import ObservedWorker
from fakes_process import ROOT, child, tandem
from fakes_raw_session import attempt
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cli.drain import named, outcome, retire
from cli.kv import audit_text, books_of
from cli.workers import WorkerAt
from core import metric_names as names
from core.errors import ConfigError
from core.request import Phase
from engine.role import Cancel, Submit
from engine.step_loop import _Call
from protos.health import LIVENESS, READINESS

PROMPT = some_tokens(100)
STUCK_AFTER_S = 0.2
SERVING, NOT_SERVING = (
    health_pb2.HealthCheckResponse.SERVING,
    health_pb2.HealthCheckResponse.NOT_SERVING,
)


@pytest.fixture(scope="module")
def house(model: Path) -> Iterator[CaseHouse]:
    # The router is not to lose a worker of a busy machine: stuck is who says so himself.
    overrides = (f"worker.stuck_after_s={STUCK_AFTER_S}", "worker.heartbeat_s=20")
    with case_house(settings(model, *overrides)) as made:
        yield made


def at(worker: ObservedWorker) -> WorkerAt:
    return WorkerAt(worker.member.worker_id, worker.member.address, worker.member.epoch)


def test_a_stuck_worker_is_alive_and_not_ready_and_neither_is_the_house(house: CaseHouse) -> None:
    steps = house.p.steps

    async def test() -> None:
        ready = health_pb2.HealthCheckRequest(service=READINESS)
        live = health_pb2.HealthCheckRequest(service=LIVENESS)
        async with grpc.aio.insecure_channel(house.p.member.address) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            watch = health.Watch(ready, timeout=DEADLINE_S)
            assert (await watch.read()).status == SERVING
            steps.hold()
            async with house.asking(PROMPT, max_tokens=2) as asking:
                assert (await watch.read()).status == NOT_SERVING
                assert (await health.Check(ready, timeout=DEADLINE_S)).status == NOT_SERVING
                assert (await health.Check(live, timeout=DEADLINE_S)).status == SERVING
                await house.until(lambda: house.router.server.fleet.readiness() is not None)
                assert (await house.router.http.get("/ready")).status_code == 503
                assert (await house.router.http.get("/live")).status_code == 200
                steps.release()
                assert (await watch.read()).status == SERVING
                await asking
            watch.cancel()
            unknown = health_pb2.HealthCheckRequest(service="nobody")
            with pytest.raises(grpc.aio.AioRpcError, match="NOT_FOUND"):
                await health.Check(unknown, timeout=DEADLINE_S)

    house.run(test())


def test_an_audit_names_who_holds_blocks_and_that_the_books_balance(house: CaseHouse) -> None:
    d = house.d

    async def test() -> None:
        d.steps.hold()
        async with house.asking(PROMPT, max_tokens=20) as asking:
            await d.steps.until_held()
            d.posted.clear()
            auditing = asyncio.create_task(books_of(at(d), DEADLINE_S))
            await d.posted.until(_Call)  # its turn comes behind the step that is held
            d.steps.release()
            books = await auditing
            await asking
        assert books.reply is not None and books.sound
        assert sum(books.reply.blocks_by_state.values()) == books.reply.num_blocks
        (holder,) = books.reply.holders
        assert (holder.kind, books.reply.role) == ("sequence", "decode")
        assert books.as_dict()["holders"][0]["num_blocks"] == holder.num_blocks
        text = audit_text([books])
        assert holder.id in text and "the books balance" in text

    house.run(test())


def test_a_worker_that_does_not_answer_has_no_sound_books(house: CaseHouse) -> None:
    gone = WorkerAt("prefill-9", "127.0.0.1:1", "")
    other = WorkerAt("prefill-9", house.p.member.address, "")
    for worker, why in ((gone, "no answer"), (other, "prefill-0 answers")):
        books = house.run(books_of(worker, DEADLINE_S))
        assert not books.sound and why in audit_text([books])


def test_transfers_and_cancels_of_each_worker_are_on_the_metrics_page(house: CaseHouse) -> None:
    p = house.p

    def num_freed() -> int:
        reports = {member.worker_id: load for member, load in house.router.server.fleet.loads()}
        return reports["prefill-0"].cancel_to_free_s.count

    async def test() -> None:
        await house.ask(some_tokens(64, seed=8), max_tokens=9)
        before = num_freed()
        p.posted.clear()
        p.steps.hold()
        async with house.asking(some_tokens(64, seed=9), max_tokens=9):
            await p.steps.until_held()
        await p.posted.until(Cancel)
        p.steps.release()
        await house.until(lambda: num_freed() == before + 1)
        who = {"worker": "prefill-0", "role": "prefill"}
        freed = await house.metric(f"{names.CANCEL_TO_FREE_SECONDS}_count", **who)
        assert freed == before + 1
        for worker in ("prefill-0", "decode-0"):
            assert await house.metric(names.TRANSFER_BYTES_TOTAL, worker=worker) > 0
        assert await house.metric(f"{names.TRANSFER_SECONDS}_count", worker="decode-0") > 0
        await house.check_whole()

    house.run(test())


def test_a_cancel_that_finds_nothing_to_free_is_not_counted(house: CaseHouse) -> None:
    async def test() -> None:
        before = house.p.parts.service._cancels.histogram()
        house.p.parts.service._cancels.cancel("nobody")
        await house.p.until_idle()
        assert house.p.parts.service._cancels.histogram() == before

    house.run(test())


@pytest.mark.parametrize(("restart", "ending"), [(False, "retired"), (True, "replaced")])
def test_a_drained_worker_has_left_and_ends_as_it_was_asked_to(
    house: CaseHouse, restart: bool, ending: str
) -> None:
    async def test() -> None:
        worker = await house.add_worker(house.config, Phase.DECODE, "decode-1")
        assert await retire(at(worker), DEADLINE_S, restart=restart) == 0
        assert await worker.wait_ended() == ending
        assert [m.worker_id for m in await house.store.members()] == ["decode-0", "prefill-0"]
        await house.stop(worker)

    house.run(test())


def test_an_operator_who_leaves_does_not_stop_the_drain(house: CaseHouse) -> None:
    async def test() -> None:
        worker = await house.add_worker(house.config, Phase.PREFILL, "prefill-1")
        worker.steps.hold()
        worker.parts.step_loop.post(Submit(attempt("t", PROMPT)))
        await worker.steps.until_held()
        asking = asyncio.create_task(retire(at(worker), DEADLINE_S, restart=False))
        async with asyncio.timeout(DEADLINE_S):
            while not worker.parts.gate.draining:
                await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait({asking})
        worker.steps.release()
        worker.parts.step_loop.post(Cancel("t"))
        assert await worker.wait_ended() == "retired"
        await house.stop(worker)

    house.run(test())


def test_a_drain_says_how_many_attempts_remained(house: CaseHouse) -> None:
    """The last test of this house: its only decode worker is drained."""
    d = house.d

    async def test() -> None:
        d.steps.hold(after=1)
        async with house.asking(PROMPT, max_tokens=20) as asking:
            await d.steps.until_held()
            assert await retire(at(d), 0.0, restart=False) == 1
            d.steps.release()
            assert len((await asking)["choices"]) == 1
        assert await d.wait_ended() == "retired"

    house.run(test())
    assert "nothing remained" in outcome(0)
    assert "still had 2 attempts" in outcome(2)


def test_by_hand_commands_find_workers_in_the_redis_and_a_drained_one_exits(
    model: Path, redis_url: str
) -> None:
    overrides = [*SETTINGS, "worker.heartbeat_s=10", f"model.model={model}", "state.backend=redis"]
    overrides += [f"state.redis_url={redis_url}", f"state.namespace={uuid.uuid4().hex}"]
    by_hand = [word for override in overrides for word in ("--set", override)]

    def command(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            tandem(*words, *by_hand[-6:]),
            capture_output=True,
            text=True,
            cwd=ROOT,
            timeout=DEADLINE_S,
        )

    assert command("kv", "audit").returncode == 1
    with child(tandem("decode-worker", "--id", "decode-a", *by_hand)) as worker:
        worker.wait_for("decode-a ready")
        audit = command("kv", "audit", "--timeout", "60")
        assert (audit.returncode, "decode-a  decode" in audit.stdout) == (0, True), audit.stderr
        drain = command("drain", "decode-a", "--timeout", "60")
        assert drain.returncode == 0, drain.stderr
        assert worker.end() == 0


def test_an_unknown_worker_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="there are: decode-0, prefill-0"):
        named("decode-9", [WorkerAt("decode-0", "", ""), WorkerAt("prefill-0", "", "")])
