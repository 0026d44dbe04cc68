"""Legs that name different transfers, pulls of what isn't there: an error each, never a hang."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fakes_cases import CaseHouse, case_house, post, settings, some_tokens
from fakes_raw_session import attempt, raw_session

from core import metric_names as names
from core.handoff import Handoff, Started
from core.request import Attempt, AttemptDone, AttemptFailed
from router.fleet.leg_event import Sink
from router.fleet.sessions import WorkerSession

NUM_ATTEMPTS = 3
PROMPT = some_tokens(40)
TIMEOUT_S = 1.0
"""Where a deadline is what ends it."""


@pytest.fixture(scope="module")
def house(model: Path) -> Iterator[CaseHouse]:
    """Its leases end by themselves after a moment."""
    with case_house(settings(model, "kv_transfer.lease_s=0.3")) as made:
        yield made


@pytest.fixture
def hasty(model: Path) -> Iterator[CaseHouse]:
    """Its pulls end by themselves after a moment, if they hear nothing."""
    with case_house(settings(model, f"kv_transfer.timeout_s={TIMEOUT_S}")) as made:
        yield made


def handoff_of(house: CaseHouse, transfer_id: str, **changes: object) -> Handoff:
    """A receipt as P would give it for PROMPT; P knows nothing of it."""
    member = house.p.member
    receipt = Handoff(
        transfer_id=transfer_id,
        worker_id=member.worker_id,
        epoch=member.epoch,
        address=member.address,
        compat_key=member.compat_key,
        num_tokens=len(PROMPT),
        first_block=0,
        num_blocks=3,
        lease_s=30.0,
    )
    return replace(receipt, **changes)  # type: ignore[arg-type]


async def refusal(house: CaseHouse, transfer_id: str, handoff: Handoff) -> AttemptFailed:
    """What D says to an attempt with this receipt."""
    async with raw_session(house.d.member) as session:
        await session.decode(attempt(transfer_id, PROMPT), handoff)
        failed = await session.take(AttemptFailed)
    await house.check_whole()
    assert (failed.transfer_id, failed.code) == (transfer_id, "transfer_failed")
    assert failed.retryable
    return failed


def test_legs_that_name_different_transfers_fail_with_a_metric(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 9. Each try is refused, the request fails, P's leases end with it."""
    decode = WorkerSession.decode

    def misnamed(
        session: WorkerSession, attempt: Attempt, handoff: Handoff | None, sink: Sink
    ) -> None:
        assert handoff is not None
        decode(session, attempt, replace(handoff, transfer_id="another"), sink)

    monkeypatch.setattr(WorkerSession, "decode", misnamed)

    async def test(house: CaseHouse) -> None:
        response = await post(house.router, PROMPT, max_tokens=9)
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "transfer_failed"
        failures = await house.metric(names.KV_HANDOFF_FAILURES_TOTAL, reason="unknown_transfer")
        assert failures == NUM_ATTEMPTS
        await house.check_whole()

    with case_house(settings(model, f"router.max_attempts={NUM_ATTEMPTS}")) as house:
        house.run(test(house))


def test_a_pull_of_what_p_does_not_know_is_refused(house: CaseHouse) -> None:
    """Case 9. P answers; nobody waits for a deadline."""

    async def test() -> None:
        before = house.p.transferred.failures.get("unknown_transfer", 0)
        failed = await refusal(house, "stranger", handoff_of(house, "stranger"))
        assert failed.reason == "unknown_transfer"
        assert house.p.transferred.failures["unknown_transfer"] == before + 1
        assert house.d.transferred.failures["unknown_transfer"] >= 1

    house.run(test())


def test_a_pull_from_a_former_incarnation_is_refused(house: CaseHouse) -> None:
    """Case 9. The address is P's, the epoch isn't any more."""

    async def test() -> None:
        failed = await refusal(house, "old", handoff_of(house, "old", epoch="former"))
        assert failed.reason == "epoch_mismatch"

    house.run(test())


@pytest.mark.parametrize("listens", [False, True])
def test_a_pull_from_where_nobody_answers_ends_at_its_deadline(
    hasty: CaseHouse, listens: bool
) -> None:
    """Case 9. Nothing there, or something that accepts and then says nothing."""

    async def test(port: int) -> None:
        receipt = handoff_of(hasty, f"mute {listens}", epoch="mute", address=f"127.0.0.1:{port}")
        failed = await refusal(hasty, receipt.transfer_id, receipt)
        assert failed.reason in ("timeout", "peer_lost")

    with contextlib.closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        if listens:
            listener.listen()
        hasty.run(test(listener.getsockname()[1]))


def test_a_receipt_for_another_prompt_is_refused(house: CaseHouse) -> None:
    """Case 9. Its length gives it away before a block is reserved."""

    async def test() -> None:
        receipt = handoff_of(house, "longer", num_tokens=41)
        assert (await refusal(house, "longer", receipt)).reason == "incompatible"

    house.run(test())


def test_kv_of_another_kind_is_refused(house: CaseHouse) -> None:
    """Case 9. Another model's blocks mean nothing here."""

    async def test() -> None:
        receipt = handoff_of(house, "other model", compat_key="another")
        assert (await refusal(house, "other model", receipt)).reason == "incompatible"

    house.run(test())


def test_what_nobody_pulls_is_given_back_when_the_lease_ends(house: CaseHouse) -> None:
    """Cases 1 and 9. The decode leg went elsewhere; P is idle, and time alone ends the lease."""

    async def test() -> None:
        async with raw_session(house.p.member) as session:
            await session.prefill(attempt("forgotten", PROMPT))
            started = await session.take(Started)
            await session.take(AttemptDone)
            # Only what was held for the lease, and is no more, is in the cache.
            await house.until(lambda: house.blocks("prefill-0", "cached") == len(PROMPT) // 16)
            assert house.held("prefill-0") == 0
            assert started.handoff is not None
            late = await refusal(house, "forgotten", started.handoff)
            assert late.reason == "lease_expired"

    house.run(test())
