"""Which KV heads travel between which ranks, and how many blocks fit a message: pure decisions.

    P TP 2, heads by rank [0 1] [2 3]        D TP 1, heads by rank [0 1 2 3]
      rank 0 sends its heads 0:2  ------->   rank 0 puts them at 0:2
      rank 1 sends its heads 0:2  ------->   rank 0 puts them at 2:4

Where a head is held by several P ranks (fewer heads than ranks), D ranks spread over the copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from core.errors import TransferError


@dataclass(frozen=True, slots=True)
class Route:
    """A run of neighbouring heads that one P rank sends to one D rank; slices of local heads."""

    prefill_rank: int
    decode_rank: int
    prefill_heads: slice
    decode_heads: slice

    @property
    def num_heads(self) -> int:
        stop: int = self.decode_heads.stop
        return stop - int(self.decode_heads.start)


def plan_routes(
    prefill_heads: Sequence[Sequence[int]], decode_heads: Sequence[Sequence[int]]
) -> tuple[Route, ...]:
    """Routes that bring every D rank each of its heads exactly once.

    Both arguments list the global head ids of each rank, in local order. Raises TransferError
    (incompatible) if no P rank holds a head that D needs.
    """
    holders = _holders(prefill_heads)
    routes: list[Route] = []
    for decode_rank, heads in enumerate(decode_heads):
        sources = [_source(holders, head, decode_rank) for head in heads]
        start = 0
        for end in range(1, len(sources) + 1):
            if end < len(sources) and _continues(sources[end - 1], sources[end]):
                continue
            routes.append(_route(sources[start], decode_rank, start, end))
            start = end
    return tuple(routes)


def blocks_per_message(max_message_bytes: int, bytes_per_block: int) -> int:
    """Blocks of one message; a block larger than the limit is a message of its own."""
    return max(1, max_message_bytes // bytes_per_block)


_Source = tuple[int, int]
"""P rank, and the head's place among that rank's heads."""


def _holders(prefill_heads: Sequence[Sequence[int]]) -> dict[int, list[_Source]]:
    holders: dict[int, list[_Source]] = {}
    for rank, heads in enumerate(prefill_heads):
        for place, head in enumerate(heads):
            holders.setdefault(head, []).append((rank, place))
    return holders


def _source(holders: dict[int, list[_Source]], head: int, decode_rank: int) -> _Source:
    copies = holders.get(head)
    if copies is None:
        raise TransferError(f"no prefill rank holds KV head {head}", reason="incompatible")
    return copies[decode_rank % len(copies)]


def _continues(before: _Source, after: _Source) -> bool:
    return after == (before[0], before[1] + 1)


def _route(source: _Source, decode_rank: int, start: int, end: int) -> Route:
    rank, place = source
    return Route(rank, decode_rank, slice(place, place + end - start), slice(start, end))
