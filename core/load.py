"""What a worker reports about itself, several times a second, on its session streams."""

from __future__ import annotations

from dataclasses import dataclass, field

from core.histogram import Histogram


@dataclass(frozen=True, slots=True)
class StepTotals:
    """What a worker's steps have computed and read, and what share of its peaks that was.

    Totals since the start of the process. Peaks are of all its ranks; 0: not known, and so is the
    share of it.
    """

    step_s: float
    operations: float
    read_bytes: float
    peak_operations_per_s: float
    peak_read_bytes_per_s: float
    mfu: float
    """Of the last seconds, while steps ran."""
    mbu: float


@dataclass(frozen=True, slots=True)
class LoadReport:
    """A worker's load at one moment. Token counts are what is still to be computed."""

    num_waiting: int = 0
    num_running: int = 0
    waiting_prefill_tokens: int = 0
    kv_blocks: dict[str, int] = field(default_factory=dict)
    """Blocks by state: importing, leased, running, cached, free. Their sum is the pool."""
    num_promised_blocks: int = 0
    """Blocks that admitted sequences may still grow into."""
    kv_unfilled_slots: int = 0
    """Token slots in running sequences' blocks that hold nothing (imports apart)."""
    last_step_age_s: float = 0.0
    """Time since the last step ended while work was pending; 0 when idle."""
    num_preemptions: int = 0
    pinned_blocks: dict[str, int] = field(default_factory=dict)
    """Pinned blocks, cached or held, by whom they are pinned for."""
    num_pins_dropped: int = 0
    """Pinned blocks that were evicted before their time, since there was no other left."""
    ready: bool = True
    draining: bool = False
    kv_transfer_bytes: int = 0
    """Sent by a prefill worker; received by a decode worker, or sent to another one."""
    kv_transfer_s: Histogram = Histogram()
    """Of the pulls that a decode worker completed, from opening to close."""
    kv_transfer_failures: dict[str, int] = field(default_factory=dict)
    """By reason; both ends of a pull count what they saw of it."""
    cancel_to_free_s: Histogram = Histogram()
    """From a cancel's arrival until nothing of its attempt holds a block any more."""
    steps: StepTotals | None = None
    """None where no peak is known."""

    @property
    def num_blocks(self) -> int:
        return sum(self.kv_blocks.values())

    @property
    def num_pinned_blocks(self) -> int:
        return sum(self.pinned_blocks.values())
