"""The contract of one rank-to-rank connection that carries KV bytes, and of those who make them.

A link is numbered by order alone: the n-th send meets the n-th receive. Both sides know each
message's size beforehand from the control stream; sizes that differ are a broken promise and may
kill the process. Any failure, a timeout included, kills the whole link: what was half received
can't be told from what comes next.

    P   host() > accept(name) > send ... > close
    D   dial(rendezvous, name) > recv ... > close

A link's name is a secret of its two ends, minted by P and told over the control stream: who knows
it is the peer. So it stands in no log and no error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where D finds a P rank's end of new links."""

    host: str
    port: int
    backend: str


class Pending(Protocol):
    """A message on its way."""

    def wait(self, timeout_s: float) -> None:
        """Blocks until the buffer is ours again; TransferError: timeout or peer_lost."""
        ...


class DataLink(Protocol):
    """One connection. `send`, `recv` and `close` belong to one thread, `abort` to anyone."""

    def send(self, message: torch.Tensor) -> Pending:
        """Starts a contiguous message; it must stay as it is until waited for."""
        ...

    def recv(self, buffer: torch.Tensor) -> Pending:
        """Receives a message of exactly the buffer's size."""
        ...

    def abort(self) -> None:
        """Kills the link and wakes a thread that waits on it. Idempotent."""
        ...

    def close(self) -> None:
        """Frees the connection; the peer's waits fail. Idempotent."""
        ...


class LinkMaker(Protocol):
    """Makes links: one object per worker process, used from many threads."""

    def host(self) -> Rendezvous:
        """Where this process accepts; starts to, if it doesn't yet."""
        ...

    def accept(self, name: str, timeout_s: float) -> DataLink:
        """P's end of the link with this unique name; TransferError: timeout or peer_lost."""
        ...

    def abandon(self, name: str) -> None:
        """Makes an `accept` of this name that still waits, or is yet to come, fail with peer_lost.
        Returns at once."""
        ...

    def dial(self, rendezvous: Rendezvous, name: str, timeout_s: float) -> DataLink:
        """D's end of it; the same errors, or incompatible for another backend or no trust."""
        ...

    def close(self) -> None:
        """Stops accepting. Links live on."""
        ...
