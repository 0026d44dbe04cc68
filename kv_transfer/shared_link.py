"""Links through memory that both ends see, for two processes of one machine and user.

P packs into the memory and D unpacks from it: bytes move twice, where gloo moves them five times.
They meet at a local socket (local_port.py), over which only words travel (shared_end.py).

No encryption, with certificates or without: root and this user can read the memory of either
process anyway, and nobody else has a way in.
"""

from __future__ import annotations

import os
import threading

from core.errors import TransferError
from kv_transfer.link import DataLink, Rendezvous
from kv_transfer.local_port import LocalPort, NotLocalError, dial_local, listen_locally
from kv_transfer.shared_end import SharedEnd
from kv_transfer.shared_memory import create_shared

BACKEND = "shm"


class SharedLinkMaker:
    """Makes links through shared memory for one process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listener: tuple[LocalPort, str] | None = None

    def host(self) -> Rendezvous:
        _, name = self._listening()
        return Rendezvous("", 0, BACKEND, local=name)

    def accept(self, name: str, timeout_s: float) -> DataLink:
        port, _ = self._listening()
        return SharedEnd(port.take(name, timeout_s), creates=True)

    def abandon(self, name: str) -> None:
        with self._lock:
            listener = self._listener
        if listener is not None:
            listener[0].abandon(name)

    def dial(self, rendezvous: Rendezvous, name: str, timeout_s: float) -> DataLink:
        if not rendezvous.local:
            raise TransferError(
                f"P sends over {rendezvous.backend}, D reads shared memory", reason="incompatible"
            )
        try:
            return SharedEnd(dial_local(rendezvous.local, name, timeout_s), creates=False)
        except NotLocalError as error:
            message = f"P shares no memory with this process: {error}"
            raise TransferError(message, reason="incompatible") from error
        except TimeoutError as error:
            raise TransferError("a link of this machine: timed out", reason="timeout") from error
        except OSError as error:
            message = f"a link of this machine: {error}"
            raise TransferError(message, reason="peer_lost") from error

    def close(self) -> None:
        with self._lock:
            listener, self._listener = self._listener, None
        if listener is not None:
            listener[0].close()

    def _listening(self) -> tuple[LocalPort, str]:
        with self._lock:
            if self._listener is None:
                try:
                    _, descriptor = create_shared(1)  # a system without them says so now
                    os.close(descriptor)
                    self._listener = listen_locally()
                except OSError as error:
                    message = f"cannot share memory on this machine: {error}"
                    raise TransferError(message, reason="peer_lost") from error
            return self._listener
