"""Links through memory that both ends see, for two processes of one machine and user.

P packs into the memory and D unpacks from it: bytes move twice, where gloo moves them five times.
They meet at a local socket (local_port.py), over which only words travel (shared_end.py).

No encryption, with certificates or without: root and this user can read the memory of either
process anyway, and nobody else has a way in.
"""

from __future__ import annotations

import os

from core.errors import TransferError
from kv_transfer.lazy_port import LazyPort
from kv_transfer.link import DataLink, Rendezvous
from kv_transfer.local_port import LocalPort, NotLocalError, dial_local, listen_locally
from kv_transfer.shared_end import SharedEnd
from kv_transfer.shared_memory import create_shared

BACKEND = "shm"


class SharedLinkMaker:
    """Makes links through shared memory for one process. Thread-safe."""

    def __init__(self) -> None:
        self._port = LazyPort(_listen, "cannot share memory on this machine")

    def host(self) -> Rendezvous:
        return Rendezvous("", 0, BACKEND, local=self._port.address())

    def accept(self, name: str, timeout_s: float) -> DataLink:
        return SharedEnd(self._port.take(name, timeout_s), creates=True)

    def abandon(self, name: str) -> None:
        self._port.abandon(name)

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
        self._port.close()


def _listen() -> tuple[LocalPort, str]:
    """Raises OSError, also where there is no shared memory: now rather than with the first link."""
    _, descriptor = create_shared(1)
    os.close(descriptor)
    return listen_locally()
