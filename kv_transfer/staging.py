"""The buffers between the pool's blocks and the network: made once per link, bounded, reused.

slot = seq mod num_slots          | 1 | 2 | 3 | 0 |     num_slots = max_inflight_messages
                                        ^ message 6 overwrites it only after 2 was acknowledged
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tandem_kernels.host_memory import lazy_zeros

from kv_cache.storage import KVStorage
from kv_transfer.link import DataLink, GatheringLink, Pending


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """One rank's share of a block on the wire: [layer, k/v, kv_head] pieces of bytes.

    A piece is one head's values of a block and, if they are quantised, its scales.
    """

    num_layers: int
    num_kv_heads: int
    piece_bytes: int
    device: torch.device

    @classmethod
    def of(cls, storage: KVStorage) -> BlockFormat:
        return cls(storage.num_layers, storage.num_kv_heads, storage.piece_bytes, storage.device)

    def shape(self, num_heads: int) -> tuple[int, ...]:
        return (self.num_layers, 2, num_heads, self.piece_bytes)

    @property
    def bytes_per_head(self) -> int:
        """Of one block."""
        return math.prod(self.shape(1))

    @property
    def bytes_per_block(self) -> int:
        return math.prod(self.shape(self.num_kv_heads))


@dataclass(frozen=True, slots=True)
class StagingLimits:
    """What a link's staging is made for; the smaller of both sides' settings."""

    max_message_bytes: int
    max_inflight_messages: int

    def smaller(self, other: StagingLimits) -> StagingLimits:
        return StagingLimits(
            min(self.max_message_bytes, other.max_message_bytes),
            min(self.max_inflight_messages, other.max_inflight_messages),
        )


@dataclass(frozen=True, slots=True)
class StagingSize:
    """Slots of a link's staging, and blocks that fit one."""

    num_slots: int
    num_blocks: int


class Staging:
    """Slots for messages of blocks with `num_heads` heads each.

    In `memory`, uint8 [staging_bytes], if there is some. Else on the KV's device for NCCL; else on
    the host: pinned if the KV is on a GPU; if not, it takes as much as messages have filled. Huge
    pages would spare a socket's copies 0 to 10 % of their time (two noisy runs), and cost every
    link 2 MiB a slot for messages of any size.
    """

    def __init__(
        self,
        block_format: BlockFormat,
        size: StagingSize,
        *,
        num_heads: int,
        backend: str,
        memory: torch.Tensor | None = None,
    ) -> None:
        self._num_slots = size.num_slots
        # [slot, block, layer, k/v, kv_head, piece_bytes]
        shape = (self._num_slots, size.num_blocks, *block_format.shape(num_heads))
        device = block_format.device
        if memory is not None:
            self._slots = memory.view(shape)
        elif backend == "nccl":
            self._slots = torch.empty(shape, dtype=torch.uint8, device=device)
        elif device.type == "cuda":
            self._slots = torch.empty(shape, dtype=torch.uint8, pin_memory=True)
        else:
            self._slots = lazy_zeros(math.prod(shape), in_huge_pages=False).view(shape)

    def slot(self, seq: int, num_blocks: int) -> torch.Tensor:
        """Message `seq`'s buffer, [num_blocks, layer, k/v, kv_head, piece_bytes], contiguous."""
        return self._slots[seq % self._num_slots, :num_blocks]


def staging_bytes(block_format: BlockFormat, size: StagingSize, num_heads: int) -> int:
    """What `Staging` takes."""
    return size.num_slots * size.num_blocks * num_heads * block_format.bytes_per_head


@dataclass(frozen=True, slots=True)
class Lane:
    """The part of a link between one P rank and one D rank: a data link and its staging.

    `index` is its number among the link's. `heads` are the local heads it carries; None means all,
    and staging is this rank's whole share of the message.
    """

    index: int
    link: DataLink
    staging: Staging
    heads: slice | None

    def send_in_place(self, storage: KVStorage, blocks: Sequence[int]) -> Pending | None:
        """Starts sending blocks from where they lie: they must stay as they are until waited for.

        None: they must be packed.
        """
        if self.heads is not None or not isinstance(self.link, GatheringLink):
            return None
        places = storage.places(blocks)
        return None if places is None else self.link.send_from(places)


def assemble(
    lanes: Sequence[Lane], whole: Staging | None, seq: int, num_blocks: int
) -> torch.Tensor:
    """All local heads of message `seq`: the only lane's own buffer, or the lanes' put together.

    Returns uint8 [num_blocks, layer, k/v, kv_head, piece_bytes].
    """
    if whole is None:
        (lane,) = lanes
        return lane.staging.slot(seq, num_blocks)
    target = whole.slot(seq, num_blocks)
    for lane in lanes:
        assert lane.heads is not None
        target[:, :, :, lane.heads] = lane.staging.slot(seq, num_blocks)
    return target
