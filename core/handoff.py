"""The typed receipt that P gives to D: where a prompt's KV lies and how to fetch it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Handoff:
    """Enough for D to open a pull. Sent with the first chunk's start, before any KV exists.

    The lease behind it lasts `lease_s` until the pull opens, and then as long as the pull.
    Blocks below `first_block` are outside the model's sliding window and never sent.
    """

    transfer_id: str
    worker_id: str
    epoch: str
    address: str
    """host:port of P's gRPC server, which serves `KvTransfer.Link`."""
    compat_key: str
    num_tokens: int
    first_block: int
    num_blocks: int
    lease_s: float


@dataclass(frozen=True, slots=True)
class Started:
    """The worker that computes the prompt has scheduled its first chunk."""

    transfer_id: str
    queue_s: float
    num_cached_tokens: int
    """Prompt tokens found in this worker's prefix cache, for `usage`; transferred is not cached."""
    handoff: Handoff | None = None
    """From P always; None from a decode worker that computes the prompt itself."""
