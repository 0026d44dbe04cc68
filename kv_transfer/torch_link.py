"""Links over 2-rank groups of torch.distributed, built directly on a store; the ends of gloo's.

P is rank 0 and hosts one TCPStore per process, bound to the worker's own address; a link's name is
the prefix of its keys, so links never see each other. What torch does, found by trying:

* A wait that times out kills the whole gloo pair: later waits fail at once. Good: so do we.
* A peer that dies fails the waits at once; a stopped one only at the timeout.
* `abort()` and `shutdown()` of a gloo group wake nobody. A second receive that times out after a
  millisecond does, since it kills the pair; that is how `abort` works here.
* A gloo message larger than the posted buffer terminates the process: sizes are agreed beforehand.
* All of these release Python's lock while they wait; destruction takes 0.1 s, stopped peer or not.
* One TCPStore client serves one waiter at a time, so each link connects its own.
* Nothing is authenticated. Whoever reaches the store lists its keys, reads and writes them, secret
  prefix or not, and can join as D. gloo listens for as long as a group lives and takes the first
  that sends a small number for the peer. Where strangers may connect: secure_link.py instead.
"""

from __future__ import annotations

import contextlib
import threading
from datetime import timedelta

import torch
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore, Work

from core.errors import TransferError
from kv_transfer.link import DataLink, Pending, Rendezvous, bytes_of
from kv_transfer.nccl_link import NcclLink
from kv_transfer.process_group import (
    Group,
    connect_store,
    gloo_group,
    host_store,
    nccl_group_of_a_link,
)

_DATA_TAG = 0
_ABORT_TAG = 1
_HERE, _ABANDONED = "here", "abandoned"
_ABORT_WAIT = timedelta(milliseconds=1)


class TorchLinkMaker:
    """Makes gloo or NCCL links for one worker process. Thread-safe."""

    def __init__(self, *, host: str, backend: str) -> None:
        assert backend in ("gloo", "nccl")
        self._host = host
        self._backend = backend
        self._lock = threading.Lock()
        self._store: TCPStore | None = None
        self._port = 0

    def host(self) -> Rendezvous:
        with self._lock:
            if self._store is None:
                self._store, self._port = host_store(self._host)
            return Rendezvous(self._host, self._port, self._backend)

    def accept(self, name: str, timeout_s: float) -> DataLink:
        return self._make(self.host(), name, 0, timeout_s)

    def abandon(self, name: str) -> None:
        with self._lock:
            if self._store is not None:
                PrefixStore(name, self._store).set(_joined(1), _ABANDONED)

    def dial(self, rendezvous: Rendezvous, name: str, timeout_s: float) -> DataLink:
        if rendezvous.backend != self._backend:
            raise TransferError(
                f"P sends over {rendezvous.backend}, D receives over {self._backend}",
                reason="incompatible",
            )
        return self._make(rendezvous, name, 1, timeout_s)

    def close(self) -> None:
        with self._lock:
            self._store = None

    def _make(self, at: Rendezvous, name: str, rank: int, timeout_s: float) -> DataLink:
        timeout = timedelta(seconds=timeout_s)
        try:
            store = connect_store(at.host, at.port, name, timeout)
            _meet(store, rank, timeout)
            if self._backend == "nccl":
                return NcclLink(nccl_group_of_a_link(store, rank), 1 - rank)
            group = gloo_group(store, rank, 2, host=self._host, timeout=timeout)
            return _GlooLink(group, 1 - rank)
        except RuntimeError as error:
            what = f"a link to {at.host}:{at.port}"
            raise _transfer_error(error, what, secret=name) from error


class _GlooLink:
    """One end of a 2-rank gloo group."""

    def __init__(self, group: Group, peer: int) -> None:
        self._group: Group | None = group
        self._peer = peer

    def share(self, size_bytes: int, timeout_s: float) -> torch.Tensor | None:
        return None

    def send(self, message: torch.Tensor) -> Pending:
        return self._start(message, sending=True)

    def recv(self, buffer: torch.Tensor) -> Pending:
        return self._start(buffer, sending=False)

    def abort(self) -> None:
        group = self._group
        if group is None:
            return
        with contextlib.suppress(RuntimeError):
            nothing = torch.empty(1, dtype=torch.uint8)
            group.recv([nothing], self._peer, _ABORT_TAG).wait(_ABORT_WAIT)

    def close(self) -> None:
        self._group = None

    def _start(self, tensor: torch.Tensor, *, sending: bool) -> Pending:
        group = self._group
        if group is None:
            raise TransferError("the link is closed", reason="peer_lost")
        payload = bytes_of(tensor)
        start = group.send if sending else group.recv
        try:
            return _GlooPending(start([payload], self._peer, _DATA_TAG), payload)
        except RuntimeError as error:
            raise _transfer_error(error, "data link") from error


class _GlooPending:
    """Keeps the buffer alive as long as torch may touch it."""

    def __init__(self, work: Work, payload: torch.Tensor) -> None:
        self._work = work
        self._payload = payload

    def wait(self, timeout_s: float) -> None:
        try:
            self._work.wait(timedelta(seconds=timeout_s))
        except RuntimeError as error:
            raise _transfer_error(error, "data link") from error


def _meet(store: Store, rank: int, timeout: timedelta) -> None:
    """Waits for the peer under a key of ours: a wait inside a group's making can't be ended."""
    store.set(_joined(rank), _HERE)
    store.wait([_joined(1 - rank)], timeout)
    if store.get(_joined(1 - rank)).decode() == _ABANDONED:
        raise TransferError("the link was given up while it was made", reason="peer_lost")


def _joined(rank: int) -> str:
    return f"joined/{rank}"


def _transfer_error(error: RuntimeError, what: str, *, secret: str = "") -> TransferError:
    """torch tells a timeout from a broken connection only in its text, which may name keys."""
    text = str(error).splitlines()[0]
    if secret:
        text = text.replace(secret, "...")
    late = "timed out" in text.lower() or "timeout" in text.lower()
    return TransferError(f"{what}: {text}", reason="timeout" if late else "peer_lost")
