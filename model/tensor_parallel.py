"""The ranks that compute one model together: the only collectives of a forward pass.

Works on a group object as it is given (built on any store), never on torch's global group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.distributed import Work

from core.errors import WorkerLostError
from core.kv_partition import share_of_rank


class Collectives(Protocol):
    """What is used of torch's ProcessGroupGloo, ProcessGroupNCCL or ProcessGroup."""

    def allreduce(self, tensors: list[Tensor], /) -> Work: ...
    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], /) -> Work: ...


@dataclass(frozen=True, slots=True)
class TensorParallel:
    """This process's place among `size` ranks; `group` is None for a single one.

    Collectives raise WorkerLostError when a peer dies or stays silent beyond the group's timeout;
    the group is of no use after that.
    """

    rank: int
    size: int
    group: Collectives | None

    @staticmethod
    def single() -> TensorParallel:
        """A model that lives in this process alone."""
        return TensorParallel(rank=0, size=1, group=None)

    def __post_init__(self) -> None:
        assert 0 <= self.rank < self.size
        assert (self.group is None) == (self.size == 1)

    def share(self, num_items: int) -> range:
        """This rank's contiguous part of `num_items` rows or columns; parts may differ by one."""
        return share_of_rank(num_items, self.size, self.rank)

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum over all ranks, in place. Any shape, equal on all ranks.

        On CPUs every element is summed in the order of the ranks: an all-reduce of more than two
        ranks starts each piece of the tensor at another rank, so that a row's bits would depend on
        its place in the batch. Gathering costs a small group as much, since both are latency.
        """
        if self.group is None:
            return x
        if self.size > 2 and x.device.type == "cpu":
            first, *others = self._gather(x.contiguous())
            total = torch.add(first, others[0], out=x)
            for other in others[1:]:
                total += other
            return total
        try:
            self.group.allreduce([x]).wait()
        except RuntimeError as error:
            raise self._lost(error) from error
        return x

    def smallest(self, number: int, device: torch.device) -> int:
        """The least of the numbers that the ranks give."""
        mine = torch.tensor([number], device=device)
        return min(int(part) for part in self._gather(mine))

    def all_gather_columns(self, x: Tensor, num_columns: int) -> Tensor:
        """Joins the ranks' shares of the last axis: [R, share(num_columns)] -> [R, num_columns]."""
        if self.group is None:
            return x
        widths = [len(share_of_rank(num_columns, self.size, r)) for r in range(self.size)]
        # Collectives want equal shapes: shares are padded to the largest, which is the first
        mine = torch.nn.functional.pad(x, (0, widths[0] - x.shape[1])).contiguous()
        parts = zip(self._gather(mine), widths, strict=True)
        return torch.cat([part[:, :width] for part, width in parts], dim=1)

    def _gather(self, mine: Tensor) -> list[Tensor]:
        """Every rank's tensor, in the order of the ranks."""
        if self.group is None:
            return [mine]
        parts = [torch.empty_like(mine) for _ in range(self.size)]
        try:
            self.group.allgather([parts], [mine]).wait()
        except RuntimeError as error:
            raise self._lost(error) from error
        return parts

    def _lost(self, error: RuntimeError) -> WorkerLostError:
        return WorkerLostError(f"rank {self.rank} of {self.size} lost its group: {error}")
