"""One end of a link between two GPUs: a 2-rank NCCL group, beside the steps of both.

NCCL only enqueues: a message travels on a stream of the group's own, after whatever the caller's
stream held when it was started. So three things that gloo does by itself are done here:

* Work.wait() makes the caller's stream wait, and the caller not at all; and the steps of a worker
  are on that stream. Instead we look whether the message has arrived, until its deadline.
* A peer of the same machine that dies or stops is not noticed, as nothing tells the waiting kernel.
  The control stream tells, or the deadline does; then the group is aborted, which ends the kernel.
* What an abort has ended looks like what has arrived. So an abort is remembered before it is done.

An abort may take as long as NCCL does what it is at, such as joining a peer: a thread waits for it.
"""

from __future__ import annotations

import logging
import threading
import time

import torch
from torch._C._distributed_c10d import Work

from core.errors import TransferError
from kv_transfer.link import Pending, bytes_of
from kv_transfer.process_group import Group

_LOG = logging.getLogger(__name__)

_TAG = 0
_FIRST_LOOK_S, _LAST_LOOK_S = 50e-6, 2e-3
"""Between two looks: a message takes a fraction of a millisecond between two GPUs of a machine."""


class NcclLink:
    """One end. Any failure of a wait, and the end itself, abort the group."""

    def __init__(self, group: Group, peer: int) -> None:
        self._group = group
        self._peer = peer
        self._lock = threading.Lock()
        self._aborted = threading.Event()

    def share(self, size_bytes: int, timeout_s: float) -> torch.Tensor | None:
        return None

    def send(self, message: torch.Tensor) -> Pending:
        return self._start(message, sending=True)

    def recv(self, buffer: torch.Tensor) -> Pending:
        return self._start(buffer, sending=False)

    def abort(self) -> None:
        with self._lock:
            if self._aborted.is_set():
                return
            self._aborted.set()
        threading.Thread(target=self._end, name="tandem-kv-abort", daemon=True).start()

    def close(self) -> None:
        """Aborts: an orderly end would wait for a peer that may be gone."""
        self.abort()

    def _end(self) -> None:
        try:
            self._group.abort()
        except RuntimeError as error:
            _LOG.warning("an NCCL group could not be aborted: %s", error)

    def _start(self, tensor: torch.Tensor, *, sending: bool) -> Pending:
        if self._aborted.is_set():
            raise TransferError("the link is closed", reason="peer_lost")
        payload = bytes_of(tensor)
        start = self._group.send if sending else self._group.recv
        try:
            return _NcclPending(self, start([payload], self._peer, _TAG), payload)
        except RuntimeError as error:
            raise _lost(error) from error

    def until_done(self, work: Work, timeout_s: float) -> None:
        """Raises TransferError; the link is aborted then."""
        try:
            self._look_until_done(work, timeout_s)
        except TransferError:
            self.abort()
            raise

    def _look_until_done(self, work: Work, timeout_s: float) -> None:
        deadline, pause_s = time.monotonic() + timeout_s, _FIRST_LOOK_S
        while not _is_done(work):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TransferError(f"data link: nothing for {timeout_s:g} s", reason="timeout")
            if self._aborted.wait(min(pause_s, left_s)):
                break
            pause_s = min(2 * pause_s, _LAST_LOOK_S)
        if self._aborted.is_set():
            raise TransferError("data link: aborted", reason="peer_lost")


class _NcclPending:
    """Keeps the buffer alive as long as NCCL may touch it."""

    def __init__(self, link: NcclLink, work: Work, payload: torch.Tensor) -> None:
        self._link = link
        self._work = work
        self._payload = payload

    def wait(self, timeout_s: float) -> None:
        self._link.until_done(self._work, timeout_s)


def _is_done(work: Work) -> bool:
    """Raises TransferError for a message that NCCL has given up."""
    try:
        if not work.is_completed():
            return False
        if work.is_success():
            return True
    except RuntimeError as error:
        raise _lost(error) from error
    raise TransferError("data link: NCCL has failed", reason="peer_lost")


def _lost(error: RuntimeError) -> TransferError:
    return TransferError(f"data link: {str(error).splitlines()[0]}", reason="peer_lost")
