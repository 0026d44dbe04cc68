"""Which query and KV heads each rank of a tensor-parallel group computes."""

from __future__ import annotations

from dataclasses import dataclass

from core.errors import ConfigError
from core.kv_partition import kv_heads_of_rank, ranks_of_kv_head, share_of_rank


@dataclass(frozen=True, slots=True)
class RankHeads:
    """One rank's heads, by their numbers in the whole model. Query heads per KV head are equal."""

    query: range
    kv: range


@dataclass(frozen=True, slots=True)
class HeadPartition:
    """Every query head belongs to exactly one rank, together with the KV head that it reads.

    Where ranks outnumber KV heads, the ranks that hold copies of one share its query heads:

        9 query / 3 KV heads, 4 ranks    q 0 1 | q 2 | q 3 4 5 | q 6 7 8
                                         kv 0  | kv 0| kv 1    | kv 2

    Raises ConfigError when a rank would have no query head.
    """

    num_heads: int
    num_kv_heads: int
    tp_size: int

    def __post_init__(self) -> None:
        assert self.num_heads % self.num_kv_heads == 0
        copies = -(-self.tp_size // self.num_kv_heads)
        if copies > self._group_size:
            raise ConfigError(
                f"tensor_parallel_size {self.tp_size} leaves ranks without a query head: the model "
                f"has {self.num_heads} query and {self.num_kv_heads} KV heads"
            )

    def rank(self, tp_rank: int) -> RankHeads:
        """The heads of `tp_rank`."""
        kv = kv_heads_of_rank(self.num_kv_heads, self.tp_size, tp_rank)
        sharers = ranks_of_kv_head(self.num_kv_heads, self.tp_size, kv.start)
        if len(sharers) == 1:
            return RankHeads(range(kv.start * self._group_size, kv.stop * self._group_size), kv)
        part = share_of_rank(self._group_size, len(sharers), tp_rank - sharers.start)
        first = kv.start * self._group_size
        return RankHeads(range(first + part.start, first + part.stop), kv)

    @property
    def _group_size(self) -> int:
        """Query heads that read one KV head."""
        return self.num_heads // self.num_kv_heads
