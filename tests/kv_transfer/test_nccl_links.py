"""What a link does with NCCL's groups, which say little by themselves. No GPU is at hand here: the
group is a stand-in that keeps to what torch's does, as far as links see it."""

from __future__ import annotations

import os
import threading
from datetime import timedelta
from typing import Any, cast

import pytest
import torch
import torch._C._distributed_c10d as c10d
from fakes_kv_peers import LONG_S

from core.errors import TransferError
from kv_transfer.nccl_link import NcclLink
from kv_transfer.process_group import Group, nccl_group_of_a_link

HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"


class Enqueued:
    """A message on NCCL's stream: its wait only enqueues, and would hold up the steps."""

    def __init__(self) -> None:
        self.looked_at = threading.Event()
        self._state = "under way"

    def end(self, state: str) -> None:
        self._state = state

    def is_completed(self) -> bool:
        self.looked_at.set()
        return self._state != "under way"

    def is_success(self) -> bool:
        return self._state == "done"

    def wait(self, timeout: timedelta) -> bool:
        raise AssertionError("the caller's stream is not to wait")


class EnqueuingGroup:
    """An abort lets everything end as if it had arrived, once it may."""

    def __init__(self) -> None:
        self.messages: list[Enqueued] = []
        self.may_abort = threading.Event()
        self.may_abort.set()
        self.aborted = threading.Event()

    def send(self, tensors: list[torch.Tensor], rank: int, tag: int) -> Enqueued:
        (payload,) = tensors
        assert (rank, payload.dtype, payload.dim()) == (1, torch.uint8, 1)
        if self.aborted.is_set():
            raise RuntimeError("NCCL communicator was aborted")
        self.messages.append(Enqueued())
        return self.messages[-1]

    recv = send

    def abort(self) -> None:
        assert not self.aborted.is_set(), "once"
        self.may_abort.wait(LONG_S)
        for message in self.messages:
            message.end("done")
        self.aborted.set()


@pytest.fixture
def group() -> EnqueuingGroup:
    return EnqueuingGroup()


@pytest.fixture
def link(group: EnqueuingGroup) -> NcclLink:
    return NcclLink(cast(Group, group), 1)


def failure(link: NcclLink, timeout_s: float = LONG_S) -> str:
    """The reason for which a message fails."""
    with pytest.raises(TransferError) as error:
        link.recv(torch.zeros(4)).wait(timeout_s)
    return error.value.reason


def test_a_wait_ends_when_its_message_has_arrived_and_not_before(
    link: NcclLink, group: EnqueuingGroup
) -> None:
    first, second = link.recv(torch.zeros(4)), link.send(torch.zeros(2, 3, dtype=torch.bfloat16))
    waiting = threading.Thread(target=first.wait, args=(LONG_S,))
    waiting.start()
    assert group.messages[0].looked_at.wait(LONG_S)
    assert waiting.is_alive()
    for message in group.messages:
        message.end("done")
    waiting.join(LONG_S)
    assert not waiting.is_alive()
    second.wait(LONG_S)
    assert not group.aborted.is_set()


def test_a_deadline_that_passes_ends_the_link(link: NcclLink, group: EnqueuingGroup) -> None:
    assert failure(link, timeout_s=0.01) == "timeout"
    assert group.aborted.wait(LONG_S), "or a kernel would wait on the GPU for ever"
    assert failure(link) == "peer_lost"


def test_a_message_that_fails_is_a_lost_peer(link: NcclLink, group: EnqueuingGroup) -> None:
    pending = link.send(torch.zeros(4))
    group.messages[0].end("failed")
    with pytest.raises(TransferError) as error:
        pending.wait(LONG_S)
    assert error.value.reason == "peer_lost"
    assert group.aborted.wait(LONG_S)


def test_what_an_abort_has_ended_has_not_arrived(link: NcclLink, group: EnqueuingGroup) -> None:
    pending = link.recv(torch.zeros(4))
    link.abort()
    assert group.aborted.wait(LONG_S) and group.messages[0].is_completed()
    with pytest.raises(TransferError) as error:
        pending.wait(LONG_S)
    assert error.value.reason == "peer_lost"


def test_an_abort_wakes_who_waits_and_does_not_wait_for_nccl(
    link: NcclLink, group: EnqueuingGroup
) -> None:
    group.may_abort.clear()
    reasons: list[str] = []
    waiting = threading.Thread(target=lambda: reasons.append(failure(link)))
    waiting.start()
    while not group.messages:
        assert waiting.is_alive()
    assert group.messages[0].looked_at.wait(LONG_S)
    link.abort()
    link.abort()
    waiting.join(LONG_S)
    assert reasons == ["peer_lost"]
    assert not group.aborted.is_set()
    group.may_abort.set()
    assert group.aborted.wait(LONG_S)


def test_closing_does_not_wait_for_the_peer_and_ends_its_waits(
    link: NcclLink, group: EnqueuingGroup
) -> None:
    link.close()
    link.close()
    assert group.aborted.wait(LONG_S)
    assert failure(link) == "peer_lost"


@pytest.mark.parametrize("before", [None, "3"])
def test_torch_does_not_end_the_process_for_a_links_failure(
    monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    """It reads so from the environment when it makes a group, which is as it was afterwards."""
    found: list[str | None] = []

    class Options:
        _timeout = timedelta()

    def make(store: Any, rank: int, size: int, options: Options) -> EnqueuingGroup:
        found.append(os.environ.get(HANDLING))
        assert (rank, size) == (0, 2)
        assert options._timeout > timedelta(minutes=5), "no deadline but the link's"
        return EnqueuingGroup()

    monkeypatch.setattr(make, "Options", Options, raising=False)
    monkeypatch.setattr(c10d, "ProcessGroupNCCL", make, raising=False)
    if before is None:
        monkeypatch.delenv(HANDLING, raising=False)
    else:
        monkeypatch.setenv(HANDLING, before)
    nccl_group_of_a_link(cast(c10d.Store, None), 0)
    assert found == ["0"] and os.environ.get(HANDLING) == before
