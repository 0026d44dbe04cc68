"""The data links that one rank has for one link, from their making to their end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

from core.errors import TransferError
from kv_transfer.link import DataLink, GatheringLink
from kv_transfer.rank_orders import LaneSpec
from kv_transfer.staging import BlockFormat, Lane, Staging, StagingSize, staging_bytes


class Lanes:
    """Belongs to one thread, but for `abort`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._links: list[DataLink] = []
        self._lanes: list[Lane] = []
        self._aborted = False

    def connect(
        self,
        specs: Sequence[LaneSpec],
        join: Callable[[int], DataLink],
        block_format: BlockFormat,
        size: StagingSize,
        *,
        backend: str,
        timeout_s: float,
        shares: bool = True,
    ) -> None:
        """Makes them with `join(index)`, in order of their numbers, as all ranks do: so none waits
        for a rank that waits for another. Raises TransferError, also when aborted meanwhile.

        `shares`: staging may be memory that the peer sees, too, so that it must not be told that a
        slot is free before it is. Else what arrives is copied out of that.
        """
        for spec in specs:
            with self._lock:
                self._raise_if_aborted()
            link = join(spec.index)
            self._add(link)
            num_bytes = staging_bytes(block_format, size, spec.num_heads)
            memory = link.share(num_bytes, timeout_s) if shares else None
            staging = Staging(
                block_format, size, num_heads=spec.num_heads, backend=backend, memory=memory
            )
            whole = spec.num_heads == block_format.num_kv_heads
            self._lanes.append(Lane(spec.index, link, staging, None if whole else spec.heads))

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._lanes)

    def __len__(self) -> int:
        return len(self._lanes)

    @property
    def move_alone(self) -> bool:
        """Whether messages move while nobody waits for them."""
        return not any(isinstance(lane.link, GatheringLink) for lane in self._lanes)

    def abort(self) -> None:
        """Kills those that are there, and wakes whoever waits on them; none is added after."""
        with self._lock:
            self._aborted = True
            links = list(self._links)
        for link in links:
            link.abort()

    def close(self) -> None:
        """Frees the connections. What lies in staging stays there."""
        for link in self._links:
            link.close()

    def _add(self, link: DataLink) -> None:
        with self._lock:
            self._links.append(link)
            self._raise_if_aborted()

    def _raise_if_aborted(self) -> None:
        if self._aborted:
            raise TransferError("the link closed while it was made", reason="peer_lost")
