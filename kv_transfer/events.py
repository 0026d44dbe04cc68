"""What a transfer tells the step loop that owns the blocks, on either side.

P   LeaseEnded      once for every offered lease, whatever the reason
D   BlocksArrived   any number, in order of blocks; each must be released, wanted or not
    PullClosed      once, after the last block     } exactly one of the three,
    PullNeedless    once, instead: no failure      } unless the step loop aborted the pull
    PullFailed      once, instead                  }
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

FINISHED = "finished"
"""The one reason to refuse a pull that is no failure."""


@dataclass(frozen=True, slots=True)
class FirstToken:
    """The first token of one choice, sampled by P. `finished`: D must not run this choice."""

    choice: int
    token_id: int
    finished: bool


class LeaseOutcome(enum.StrEnum):
    """Why a lease ended."""

    COMPLETED = "completed"
    """D has acknowledged everything."""
    ABORTED = "aborted"
    """D gave the pull up."""
    CANCELLED = "cancelled"
    """P gave the lease up."""
    FINISHED = "finished"
    """Every choice ended with its first token: nobody needs the KV."""
    EXPIRED = "expired"
    """Nobody pulled within the grace, the request's deadline passed, or D stopped acknowledging."""
    PEER_LOST = "peer_lost"
    """The link to D died."""


@dataclass(frozen=True, slots=True)
class LeaseEnded:
    """Nothing reads the lease's blocks any more; the step loop releases its holder."""

    transfer_id: str
    outcome: LeaseOutcome


def _nobody(blocks: Sequence[int]) -> None:
    """A worker of one rank has no others."""


@dataclass(frozen=True, slots=True)
class BlocksArrived:
    """Blocks of a prompt lie in staging on every rank, to be unpacked if the pull still lives.

    `first_block` counts from the prompt's start. `staging` is
    uint8 [num_blocks, layer, k/v, kv_head, piece_bytes] in this rank's heads; it is valid until
    `release`, which may be called once, from any thread, and must be called in every case: until
    then the slot is not acknowledged and P sends only a few messages more. Before it is unpacked
    here, and by the same thread, `others_unpack` has the other ranks put their shares into the same
    blocks, before they compute the next step.
    """

    transfer_id: str
    first_block: int
    num_blocks: int
    staging: torch.Tensor
    release: Callable[[], None]
    others_unpack: Callable[[Sequence[int]], None] = _nobody


@dataclass(frozen=True, slots=True)
class PullClosed:
    """All blocks have been delivered; the sequence can step.

    `chunk_end_age_s` is the time since P's last chunk ended: what the prefill did not hide.
    """

    transfer_id: str
    first_tokens: tuple[FirstToken, ...]
    chunk_end_age_s: float


@dataclass(frozen=True, slots=True)
class PullNeedless:
    """No more blocks will come, and none are needed: P finished every choice."""

    transfer_id: str


@dataclass(frozen=True, slots=True)
class PullFailed:
    """No more blocks will come. `reason` is a label of `core.errors.TransferError`."""

    transfer_id: str
    reason: str
    message: str


PullEvent = BlocksArrived | PullClosed | PullNeedless | PullFailed
