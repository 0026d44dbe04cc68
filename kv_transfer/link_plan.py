"""What both ends of a link work out from the same facts: who carries which heads, how many blocks.

A message is some blocks of a prompt on all data links together: each carries its own heads of the
same blocks, under the same number. So its size does not depend on how either side divides heads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kv_transfer.layout import Route, blocks_per_message
from kv_transfer.rank_orders import LaneSpec
from kv_transfer.staging import BlockFormat, StagingLimits, StagingSize


@dataclass(frozen=True, slots=True)
class LinkPlan:
    """The data links of a link, in order of their numbers."""

    routes: tuple[Route, ...]
    bytes_per_block: int
    """Of one block on all data links; a head that several D ranks hold counts for each."""
    size: StagingSize

    @classmethod
    def of(
        cls, routes: Sequence[Route], block_format: BlockFormat, limits: StagingLimits
    ) -> LinkPlan:
        """`block_format` may be any rank's of either side: their pieces are the same."""
        num_heads = sum(route.num_heads for route in routes)
        bytes_per_block = num_heads * block_format.bytes_per_head
        num_blocks = blocks_per_message(limits.max_message_bytes, bytes_per_block)
        return cls(
            tuple(routes), bytes_per_block, StagingSize(limits.max_inflight_messages, num_blocks)
        )

    def prefill_lanes(self, rank: int) -> tuple[LaneSpec, ...]:
        """What P's `rank` sends."""
        return self._lanes(lambda r: r.prefill_heads if r.prefill_rank == rank else None)

    def decode_lanes(self, rank: int) -> tuple[LaneSpec, ...]:
        """What D's `rank` receives."""
        return self._lanes(lambda r: r.decode_heads if r.decode_rank == rank else None)

    def _lanes(self, heads_of: Callable[[Route], slice | None]) -> tuple[LaneSpec, ...]:
        numbered = ((index, heads_of(route)) for index, route in enumerate(self.routes))
        return tuple(
            LaneSpec(index, heads.start, heads.stop - heads.start)
            for index, heads in numbered
            if heads is not None
        )


def lane_name(link_id: str, token: str, index: int) -> str:
    """Under which both ends of a data link meet; secret as the token is."""
    return f"{token}/{link_id}/{index}"
