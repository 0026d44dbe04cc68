"""The contract of one rank-to-rank connection that carries KV bytes, and of those who make them.

A link is numbered by order alone: the n-th send meets the n-th receive. Both sides know each
message's size beforehand from the control stream; sizes that differ are a broken promise and may
kill the process. Any failure, a timeout included, kills the whole link: what was half received
can't be told from what comes next.

    P   host() > accept(name) > send ... > close
    D   dial(rendezvous, name) > recv ... > close

Some links have memory that both ends see. A message in it needs no copy: it is in place when it
arrives, and the receiver tells the sender, by other means, when it may be overwritten.

    P   accept > share(size) > send parts of it
    D   dial   > share(size) > recv the same parts of it
        dial                 > recv into other memory: copied on arrival

A link's name is a secret of its two ends, minted by P and told over the control stream: who knows
it is the peer. So it stands in no log and no error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where D finds a P rank's end of new links.

    `local`: a name that says where, to whom is on the same machine; empty: no difference is made.
    """

    host: str
    port: int
    backend: str
    local: str = ""


class Pending(Protocol):
    """A message on its way."""

    def wait(self, timeout_s: float) -> None:
        """Blocks until the buffer is ours again; TransferError: timeout or peer_lost."""
        ...


class DataLink(Protocol):
    """One connection. `send`, `recv` and `close` belong to one thread, `abort` to anyone."""

    def share(self, size_bytes: int, timeout_s: float) -> torch.Tensor | None:
        """Memory that both ends see, uint8 [size_bytes], zeroed, for as long as it is referred to.

        None: this link has none, and any memory will do. Asked for once, before messages. The
        sender's end, if it gets any, sends nothing but parts of it; the receiver's waits for the
        sender's, and TransferError: timeout, peer_lost, or corrupt for another size.
        """
        ...

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


@runtime_checkable
class GatheringLink(DataLink, Protocol):
    """One that sends from memory of the host, wherever it lies.

    Its messages move in calls of its thread alone. So who waits for another rank may have none
    under way, and several are waited for in order of their data links' numbers, on all ranks.
    """

    def send_from(self, places: Sequence[memoryview]) -> Pending:
        """Starts one message of all of them, in order.

        They are read by the link's thread, in its calls, until this message was waited for, whether
        it has arrived or not, or the link was aborted.
        """
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


def bytes_of(message: torch.Tensor) -> torch.Tensor:
    """Of a contiguous tensor, uint8 [size_bytes]: no type matters on the wire."""
    return message.view(-1).view(torch.uint8)
