"""What one run of the load generator sends: the workload, and the loads it is sent at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from bench.lengths import LengthRange
from bench.stats import Slo
from bench.traces import TraceRow
from bench.workload import WorkItem, at_speed, synthetic_items, take, trace_items, with_arrivals
from core.errors import ConfigError

LoadKind = Literal["concurrency", "rate", "trace_speed"]


@dataclass(frozen=True, slots=True)
class Load:
    """How hard a server is pressed.

    concurrency: so many requests under way (closed loop). rate: requests per second at random
    times; trace_speed: the trace's own times, so many times as fast (both open loop).
    """

    kind: LoadKind
    value: float

    def __post_init__(self) -> None:
        if self.value <= 0 or (self.kind == "concurrency" and self.value != int(self.value)):
            raise ConfigError(f"{self.kind} {self.value:g}: expected a positive number")

    @property
    def label(self) -> str:
        return f"{self.kind}={self.value:g}"


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """The requests of each load point; the same plan and seed give the same requests."""

    inputs: LengthRange = LengthRange(128, 128)
    outputs: LengthRange = LengthRange(64, 64)
    trace: tuple[TraceRow, ...] | None = None
    """Lengths, prefixes and texts from a file instead of `inputs` and `outputs`."""
    max_input_len: int | None = None
    max_output_len: int | None = None
    """Cut the trace's requests to what the server's model can hold."""
    num_requests: int | None = None
    duration_s: float | None = None
    burstiness: float = 1.0
    warmup: int = 0
    seed: str = "0"
    slo: Slo | None = None

    def items(self, load: Load) -> Iterator[WorkItem]:
        """The measured requests at one load. Loads share no prompt, so no prefix is cached."""
        seed = self.prompt_seed(load)
        items = self._endless(seed)
        if load.kind == "rate":
            items = with_arrivals(items, load.value, self.burstiness, seed)
        elif load.kind == "trace_speed":
            items = at_speed(items, load.value)
        limit = self._num_requests(load)
        timed = None if load.kind == "concurrency" else self.duration_s
        return take(items, num_requests=limit, duration_s=timed)

    def prompt_seed(self, load: Load) -> str:
        """The seed of the prompts' content at one load."""
        return f"{self.seed}/{load.label}"

    def warmup_items(self) -> Iterator[WorkItem]:
        """Requests of the same kind whose prompts (texts apart) no measured request repeats."""
        items = self._endless(self.warmup_seed)
        return take(items, num_requests=self.warmup, duration_s=None)

    @property
    def warmup_seed(self) -> str:
        """The seed of the warm-up prompts' content."""
        return f"{self.seed}/warmup"

    def _endless(self, seed: str) -> Iterator[WorkItem]:
        if self.trace is None:
            return synthetic_items(self.inputs, self.outputs, seed)
        return trace_items(
            self.trace, max_input_len=self.max_input_len, max_output_len=self.max_output_len
        )

    def _num_requests(self, load: Load) -> int | None:
        """The limit asked for; else what fills four rounds, unless time or trace ends the run."""
        if self.num_requests is not None or self.duration_s is not None or self.trace is not None:
            return self.num_requests
        return max(16, 4 * int(load.value)) if load.kind == "concurrency" else 64


def parse_sweep(text: str) -> tuple[Load, ...]:
    """Reads `concurrency=1,2,4` or `rate=0.5,1`; raises ConfigError."""
    kind, equals, values = text.partition("=")
    kinds: dict[str, LoadKind] = {"concurrency": "concurrency", "rate": "rate"}
    try:
        return tuple(Load(kinds[kind.strip()], float(value)) for value in values.split(","))
    except (KeyError, ValueError):
        raise ConfigError(f"sweep {text!r}: expected concurrency=1,2,4 or rate=0.5,1") from None
