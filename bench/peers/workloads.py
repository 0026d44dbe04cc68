"""What is asked of every server: small descriptions that a run picks from by name.

stream, concurrency, prefill   closed loop of requests of one length
azure                          closed loop, lengths of a trace
arrival                        running streams, into which one long prompt comes
start                          nothing runs; a request waits for the process to answer
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.lengths import LengthRange
from bench.load_plan import Load, LoadPlan
from bench.traces import TraceRow
from core.errors import ConfigError

MEMORY = "memory"
"""Not asked for, but noted of every server: after its first answer, and after its workloads."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What a server must be able to hold at once, for those that are told beforehand."""

    num_seqs: int
    tokens_per_seq: int
    """Prompt and output of the longest request."""


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """So many requests, so many of them under way."""

    name: str
    concurrency: int
    num_requests: int
    input_len: int = 128
    output_len: int = 64
    trace: tuple[TraceRow, ...] | None = None
    """Lengths of these rows instead of fixed ones."""

    @property
    def demand(self) -> Demand:
        if self.trace is None:
            return Demand(self.concurrency, self.input_len + self.output_len)
        longest = max(row.input_len + row.output_len for row in self.trace)
        return Demand(self.concurrency, longest)

    @property
    def load(self) -> Load:
        return Load("concurrency", self.concurrency)

    def plan(self, seed: str) -> LoadPlan:
        """The requests of one repetition; other seeds share no prompt with them."""
        return LoadPlan(
            inputs=LengthRange(self.input_len, self.input_len),
            outputs=LengthRange(self.output_len, self.output_len),
            trace=self.trace,
            num_requests=self.num_requests,
            seed=f"{seed}/{self.name}",
        )


@dataclass(frozen=True, slots=True)
class Arrival:
    """Streams that run by themselves for a while, then one prompt among them.

    The prompt is answered with a few tokens, so that where two workers share the work its KV
    travels and its sequence joins the streams.
    """

    name: str
    prompt_len: int
    num_streams: int = 4
    stream_input_len: int = 128
    stream_output_len: int = 6_000
    """More than any server makes before the prompt is answered; then the streams are cut off."""
    answer_len: int = 8
    quiet_s: float = 3.0

    @property
    def demand(self) -> Demand:
        stream_len = self.stream_input_len + self.stream_output_len
        return Demand(self.num_streams + 1, max(stream_len, self.prompt_len + self.answer_len))


@dataclass(frozen=True, slots=True)
class Start:
    """From the start of the process to the first token of a request that waits for it."""

    name: str = "start"

    @property
    def demand(self) -> Demand:
        return Demand(num_seqs=1, tokens_per_seq=64)


Workload = ClosedLoop | Arrival | Start

# Of an hour of the trace, taken evenly: enough for a mixture, few enough for five repetitions.
_NUM_TRACE_REQUESTS = 16
_MAX_TRACE_INPUT_LEN = 4_096
_MAX_TRACE_OUTPUT_LEN = 512


def all_workloads(trace: Sequence[TraceRow] | None = None) -> tuple[Workload, ...]:
    """Every workload, in the order they are run; `azure` only with a trace."""
    return (
        Start(),
        ClosedLoop("stream", 1, 3, output_len=128),
        ClosedLoop("concurrency-8", 8, 32),
        ClosedLoop("concurrency-32", 32, 64),
        ClosedLoop("prefill-1024", 1, 5, input_len=1_024, output_len=1),
        ClosedLoop("prefill-4096", 1, 3, input_len=4_096, output_len=1),
        *((_azure(trace),) if trace else ()),
        ClosedLoop("short-64", 64, 64, input_len=30, output_len=300),
        *(Arrival(f"arrival-{length}", length) for length in (512, 2_048, 7_936)),
    )


def chosen(workloads: Sequence[Workload], names: Sequence[str]) -> tuple[Workload, ...]:
    """The named ones in their own order, all without names. Raises ConfigError."""
    known = [workload.name for workload in workloads]
    for name in names:
        if name not in known:
            hint = "; azure needs --trace" if name == "azure" else ""
            raise ConfigError(f"workload {name!r} is none of {', '.join(known)}{hint}")
    return tuple(w for w in workloads if not names or w.name in names)


def _azure(trace: Sequence[TraceRow]) -> ClosedLoop:
    """Lengths only: every request comes when one before it has ended."""
    step = max(1, len(trace) // _NUM_TRACE_REQUESTS)
    rows = tuple(
        TraceRow(
            min(row.input_len, _MAX_TRACE_INPUT_LEN), min(row.output_len, _MAX_TRACE_OUTPUT_LEN)
        )
        for row in trace[::step][:_NUM_TRACE_REQUESTS]
    )
    return ClosedLoop("azure", 8, len(rows), trace=rows)
