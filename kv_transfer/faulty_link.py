"""Data links that fail on purpose: `core.faults` at kv_send and kv_recv, around any links.

None takes blocks from their places: what a fault changes must be nobody's but the message's.
"""

from __future__ import annotations

import threading

import torch

from core.errors import TransferError
from core.faults import FaultAction, FaultPoint, Faults
from kv_transfer.link import DataLink, LinkMaker, Pending, Rendezvous, bytes_of

_WRONG_BYTE = 0x41
"""As numbers of any type that KV has, bytes of this value are finite and far from usual ones."""


class FaultyLinkMaker:
    """Makes the links of another maker, with faults put before their messages."""

    def __init__(self, inner: LinkMaker, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults

    def host(self) -> Rendezvous:
        return self._inner.host()

    def accept(self, name: str, timeout_s: float) -> DataLink:
        return _FaultyLink(self._inner.accept(name, timeout_s), self._faults)

    def abandon(self, name: str) -> None:
        self._inner.abandon(name)

    def dial(self, rendezvous: Rendezvous, name: str, timeout_s: float) -> DataLink:
        return _FaultyLink(self._inner.dial(rendezvous, name, timeout_s), self._faults)

    def close(self) -> None:
        self._inner.close()


class _FaultyLink:
    """One end. Once a message was dropped the link is cut: none that follows may take its place."""

    def __init__(self, inner: DataLink, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults
        self._aborted = threading.Event()
        self._cut = False
        self._shares = False

    def share(self, size_bytes: int, timeout_s: float) -> torch.Tensor | None:
        memory = self._inner.share(size_bytes, timeout_s)
        self._shares = memory is not None
        return memory

    def send(self, message: torch.Tensor) -> Pending:
        payload = bytes_of(message)
        match self._happens(FaultPoint.KV_SEND):
            case FaultAction.DROP:
                return _Lost(self._aborted)
            case FaultAction.TRUNCATE if self._shares:
                _corrupt(payload)  # nothing travels: what would be cut off is gone from its place
            case FaultAction.TRUNCATE:
                payload = payload[: max(1, len(payload) // 2)]
            case FaultAction.CORRUPT:
                _corrupt(payload)
        return self._inner.send(payload)

    def recv(self, buffer: torch.Tensor) -> Pending:
        happens = self._happens(FaultPoint.KV_RECV)
        if happens is FaultAction.DROP:
            return _Lost(self._aborted)
        if not self._shares:
            # So that what a truncated message leaves out is not there from an earlier one
            bytes_of(buffer).fill_(_WRONG_BYTE)
        pending = self._inner.recv(buffer)
        return _Corrupted(pending, buffer) if happens is FaultAction.CORRUPT else pending

    def abort(self) -> None:
        self._aborted.set()
        self._inner.abort()

    def close(self) -> None:
        self._inner.close()

    def _happens(self, point: FaultPoint) -> FaultAction | None:
        """What is to be done to the next message, after its delay."""
        fault = self._faults.take(point)
        if fault is not None and fault.delay_s > 0:
            self._aborted.wait(fault.delay_s)
        action = None if fault is None else fault.action
        if action is FaultAction.FAIL:
            raise TransferError(f"a fault at {point}", reason="peer_lost")
        self._cut = self._cut or action is FaultAction.DROP
        return FaultAction.DROP if self._cut else action


class _Lost:
    """A message that never arrives."""

    def __init__(self, aborted: threading.Event) -> None:
        self._aborted = aborted

    def wait(self, timeout_s: float) -> None:
        aborted = self._aborted.wait(timeout_s)
        reason = "peer_lost" if aborted else "timeout"
        raise TransferError("a message was dropped", reason=reason)


class _Corrupted:
    """A message that arrives with other bytes."""

    def __init__(self, inner: Pending, buffer: torch.Tensor) -> None:
        self._inner = inner
        self._buffer = buffer

    def wait(self, timeout_s: float) -> None:
        self._inner.wait(timeout_s)
        _corrupt(bytes_of(self._buffer))


def _corrupt(payload: torch.Tensor) -> None:
    payload[len(payload) // 2 :] = _WRONG_BYTE
