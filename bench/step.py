"""What steps of one engine take, against batch, context and prompt length, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from bench.report import SCHEMA_VERSION, MachineReport
from core.roofline import Roofline

PARTS = ("schedule", "flatten", "forward", "sampling", "complete", "tell")
"""A step in order. `flatten` makes arrays, `tell` collects events and the load report."""


@dataclass(frozen=True, slots=True)
class StepPlanOptions:
    """Which cases are measured, and how each row is sampled."""

    batches: tuple[int, ...] = (1, 8, 32, 128, 256)
    contexts: tuple[int, ...] = (128, 1024, 8192)
    prompt_lens: tuple[int, ...] = (128, 1024, 4096)
    temperature: float = 0.0
    top_p: float = 1.0
    max_steps: int = 48
    min_case_s: float = 1.0
    """A case ends after this time, at `max_steps` at the latest, after 5 steps at the earliest."""


@dataclass(frozen=True, slots=True)
class DecodeCase:
    """Steps of one token for each of `batch` sequences; medians over the steps."""

    batch: int
    context: int
    """Tokens of each sequence at the first step."""
    num_steps: int
    step_s: float
    fastest_step_s: float
    parts_s: Mapping[str, float]
    """By name in `PARTS`; medians of their own, so their sum is only about the step's."""
    publish_s: float
    """Events to wire messages, which happens beside the next step."""
    forward_s: Mapping[str, float]
    """The forward pass by kind of operation, means; empty where kernels don't tell."""
    read_bytes: int
    """Weights and KV that a step has to read."""
    mbu: float = 0.0
    """Read bytes / step time / measured bandwidth."""

    def against(self, limits: Roofline) -> DecodeCase:
        """With its share of what the machine reads."""
        return replace(self, mbu=self.read_bytes / self.step_s / limits.read_bytes_per_s)

    @property
    def scheduling_share(self) -> float:
        """Scheduler and pool: planning, and bookkeeping after the step."""
        return (self.parts_s["schedule"] + self.parts_s["complete"]) / self.step_s


@dataclass(frozen=True, slots=True)
class PrefillCase:
    """A prompt computed alone in chunks, to its first token; medians over repetitions."""

    prompt_len: int
    num_chunks: int
    prompt_s: float
    tokens_per_s: float
    operations: float
    """Floating-point (or integer) operations of linear layers and causal attention."""
    mfu: float = 0.0
    """Operations / time / measured matmul rate."""

    def against(self, limits: Roofline) -> PrefillCase:
        """With its share of what the machine multiplies."""
        return replace(self, mfu=self.operations / self.prompt_s / limits.matmul_ops_per_s)


@dataclass(frozen=True, slots=True)
class StepReport:
    """One engine in one precision."""

    model: str
    settings: Mapping[str, str]
    roofline: Roofline
    """Measured in the same run with the same threads."""
    decode: tuple[DecodeCase, ...]
    prefill: tuple[PrefillCase, ...]
    skipped: tuple[str, ...]
    """Cases that don't fit this machine or model, with the reason."""
    machine: MachineReport = field(default_factory=MachineReport)
    schema_version: int = SCHEMA_VERSION
