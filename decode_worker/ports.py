"""What a decode role asks of others: pulls, and changes to stored KV between steps."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Protocol

import torch

from core.handoff import Handoff


class KVReceiver(Protocol):
    """The receiving half of `kv_transfer` as this role uses it; every method returns at once."""

    def pull(self, handoff: Handoff, num_held_blocks: int) -> None:
        """Fetches the prompt's blocks from index `num_held_blocks` on."""
        ...

    def abort(self, transfer_id: str) -> None:
        """Nothing more is delivered for this pull. Idempotent."""
        ...


class KVOps(Protocol):
    """Changes to stored KV outside a step, in the order of the calls."""

    def copy_blocks(self, pairs: Seq[tuple[int, int]]) -> None: ...

    def unpack(self, blocks: Seq[int], staging: torch.Tensor) -> None: ...
