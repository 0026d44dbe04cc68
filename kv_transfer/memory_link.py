"""Links inside one process, with the same rules as real ones; tests stop, delay and break them.

A message is copied when send and receive have met, not before: reusing a buffer too early is seen.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

import torch

from core.errors import TransferError
from kv_transfer.link import DataLink, Pending, Rendezvous, bytes_of


class MemoryLinkMaker:
    """Makes both ends of in-memory links. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._pairs: dict[str, _Pair] = {}
        self._paused = False

    def host(self) -> Rendezvous:
        return Rendezvous("memory", 0, "memory")

    def accept(self, name: str, timeout_s: float) -> DataLink:
        return self._join(name, timeout_s, receiving=False)

    def abandon(self, name: str) -> None:
        with self._changed:
            self._pair(name).end("peer_lost")

    def dial(self, rendezvous: Rendezvous, name: str, timeout_s: float) -> DataLink:
        if rendezvous.backend != "memory":
            raise TransferError(f"P sends over {rendezvous.backend}", reason="incompatible")
        return self._join(name, timeout_s, receiving=True)

    def close(self) -> None:
        """Nothing listens."""

    def pause(self) -> None:
        """From now on messages stay under way."""
        with self._changed:
            self._paused = True

    def resume(self) -> None:
        """Delivers what is under way, in order."""
        with self._changed:
            self._paused = False
            for pair in self._pairs.values():
                pair.match()

    def wait_under_way(self, num_messages: int, timeout_s: float) -> bool:
        """Waits until so many messages were sent and have not arrived; False if they were not."""
        with self._changed:
            return self._changed.wait_for(
                lambda: sum(len(pair.sends) for pair in self._pairs.values()) >= num_messages,
                timeout_s,
            )

    def break_links(self) -> None:
        """Ends all links as a peer's death would."""
        with self._changed:
            for pair in self._pairs.values():
                pair.end("peer_lost")

    def _join(self, name: str, timeout_s: float, *, receiving: bool) -> DataLink:
        with self._changed:
            pair = self._pair(name)
            pair.num_ends += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: pair.num_ends == 2 or pair.ended is not None, timeout_s)
            if pair.num_ends < 2:
                raise TransferError("nobody joined the link", reason=pair.ended or "timeout")
            return _MemoryLink(pair)

    def _pair(self, name: str) -> _Pair:
        if name not in self._pairs:
            self._pairs[name] = _Pair(self._changed, lambda: self._paused)
        return self._pairs[name]


class _Pair:
    """What both ends share; guarded by the maker's lock."""

    def __init__(self, changed: threading.Condition, paused: Callable[[], bool]) -> None:
        self.changed = changed
        self.num_ends = 0
        self.ended: str | None = None
        self.sends: deque[_MemoryPending] = deque()
        self.recvs: deque[_MemoryPending] = deque()
        self._paused = paused

    def match(self) -> None:
        while self.sends and self.recvs and not self._paused() and self.ended is None:
            send, recv = self.sends.popleft(), self.recvs.popleft()
            assert send.tensor.nbytes == recv.tensor.nbytes, "sizes are agreed beforehand"
            recv.tensor.copy_(send.tensor)
            send.done = recv.done = True
        self.changed.notify_all()

    def end(self, reason: str) -> None:
        if self.ended is None:
            self.ended = reason
            self.changed.notify_all()


class _MemoryLink:
    """One end; closing it ends the other's waits, as a closed socket would."""

    def __init__(self, pair: _Pair) -> None:
        self._pair = pair

    def share(self, size_bytes: int, timeout_s: float) -> torch.Tensor | None:
        return None

    def send(self, message: torch.Tensor) -> Pending:
        return self._start(message, self._pair.sends)

    def recv(self, buffer: torch.Tensor) -> Pending:
        return self._start(buffer, self._pair.recvs)

    def abort(self) -> None:
        with self._pair.changed:
            self._pair.end("peer_lost")

    def close(self) -> None:
        self.abort()

    def _start(self, tensor: torch.Tensor, queue: deque[_MemoryPending]) -> Pending:
        with self._pair.changed:
            pending = _MemoryPending(bytes_of(tensor), self._pair)
            queue.append(pending)
            self._pair.match()
            return pending


class _MemoryPending:
    def __init__(self, tensor: torch.Tensor, pair: _Pair) -> None:
        self.tensor = tensor
        self.done = False
        self._pair = pair

    def wait(self, timeout_s: float) -> None:
        pair = self._pair
        with pair.changed:
            pair.changed.wait_for(lambda: self.done or pair.ended is not None, timeout_s)
            if self.done:
                return
            pair.end("timeout")
            assert pair.ended is not None
            raise TransferError("the message did not arrive", reason=pair.ended)
