"""The typed receipt that is given to D: where a sequence's KV lies and how to fetch it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Handoff:
    """Enough for D to open a pull. P sends it with the first chunk's start, before any KV exists;
    a decode worker that lets go of a choice sends it when the KV is all there (`Moved`).

    The lease behind it lasts `lease_s` until the pull opens, and then as long as the pull.
    Blocks below `first_block` are outside the model's sliding window and never sent.
    """

    transfer_id: str
    worker_id: str
    epoch: str
    address: str
    """host:port of the lender's gRPC server, which serves `KvTransfer.Link`."""
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


@dataclass(frozen=True, slots=True)
class Moved:
    """A decode worker was asked to let go of an attempt, and runs these choices no longer.

    With a handoff it is one choice, whose KV is kept under a lease of the handoff's own transfer
    id, for an attempt of that id: its tokens are the handoff's `num_tokens`, prompt and emitted but
    for the last, which the pull's close brings as a first token. Without one there is no KV to be
    had, and whoever takes the choices computes it.
    """

    transfer_id: str
    choices: tuple[int, ...]
    handoff: Handoff | None = None

    def __post_init__(self) -> None:
        assert self.handoff is None or len(self.choices) == 1
