"""What a leader's link tells its share on another rank, and what that answers: JSON in frames.

open      > hosts, opened      the data links of this rank, and what staging they need
pack      > packed             P: blocks into the slot of a message
send                           P: the message was announced, so it goes out
receive   > arrived            D: the message will come
abort                          the data links are killed
forget                         D: nothing is left to be unpacked
any order > failed             the share is dead, and so is the link
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from core.errors import TransferError
from kv_transfer.link import Rendezvous


@dataclass(frozen=True, slots=True)
class LaneSpec:
    """The data link `index` of a link, and the run of a rank's local heads that it carries."""

    index: int
    first_head: int
    num_heads: int

    @property
    def heads(self) -> slice:
        return slice(self.first_head, self.first_head + self.num_heads)


@dataclass(frozen=True, slots=True)
class OpenLanes:
    """First on every connection. `sends`: this is a rank of P; it says first where it waits.

    `peers`: on D, where the P rank of each lane waits.
    """

    link_id: str
    token: str
    sends: bool
    lanes: tuple[LaneSpec, ...]
    peers: tuple[Rendezvous, ...]
    num_slots: int
    blocks_per_slot: int
    timeout_s: float
    verify: bool


@dataclass(frozen=True, slots=True)
class PackBlocks:
    """The blocks are complete once the rank has followed `after_plans` plans."""

    seq: int
    blocks: tuple[int, ...]
    after_plans: int


@dataclass(frozen=True, slots=True)
class SendMessage:
    seq: int
    num_blocks: int


@dataclass(frozen=True, slots=True)
class ReceiveMessage:
    """`checksums` are of this rank's lanes, in their order; none: they are not verified.

    The slot is free once the rank has followed `after_plans` plans.
    """

    seq: int
    num_blocks: int
    checksums: tuple[int, ...]
    after_plans: int


@dataclass(frozen=True, slots=True)
class Abort:
    pass


@dataclass(frozen=True, slots=True)
class Forget:
    """Staging may go once the rank has followed `after_plans` plans."""

    after_plans: int


@dataclass(frozen=True, slots=True)
class Hosts:
    """Where this rank of P waits for its data links."""

    rendezvous: Rendezvous


@dataclass(frozen=True, slots=True)
class Opened:
    pass


@dataclass(frozen=True, slots=True)
class Packed:
    """`checksums` are of this rank's lanes, in their order; none: they are not verified."""

    seq: int
    checksums: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Arrived:
    """`intact`: the bytes have the checksums that were given."""

    seq: int
    intact: bool


@dataclass(frozen=True, slots=True)
class Failed:
    reason: str
    message: str


Order: TypeAlias = OpenLanes | PackBlocks | SendMessage | ReceiveMessage | Abort | Forget
Reply: TypeAlias = Hosts | Opened | Packed | Arrived | Failed

_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        *(OpenLanes, PackBlocks, SendMessage, ReceiveMessage, Abort, Forget),
        *(Hosts, Opened, Packed, Arrived, Failed),
    )
}


def encode(message: Order | Reply) -> bytes:
    return json.dumps([type(message).__name__, asdict(message)]).encode()


def decode(data: bytes | bytearray) -> Order | Reply:
    """The message whose `encode` gave `data`. Raises TransferError (corrupt)."""
    try:
        kind, fields = json.loads(data)
        if kind == OpenLanes.__name__:
            fields["lanes"] = [LaneSpec(**lane) for lane in fields["lanes"]]
            fields["peers"] = [Rendezvous(**peer) for peer in fields["peers"]]
        elif kind == Hosts.__name__:
            fields["rendezvous"] = Rendezvous(**fields["rendezvous"])
        values = {name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()}
        message: Order | Reply = _KINDS[kind](**values)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise TransferError(
            f"ranks of one group differ in code: {error}", reason="corrupt"
        ) from None
    return message
