"""The bars that Tandem's CPU engine is to reach beside its peers, and whether it did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

from bench.peers.memory_measurement import START_MIB, TOTAL_MIB
from bench.peers.results import Measurement
from bench.peers.summary import Figure, ratio, values
from bench.peers.workloads import MEMORY
from bench.stats import median


@dataclass(frozen=True, slots=True)
class Bar:
    """A limit of one figure: of its ratio to another contender's, or of itself."""

    contender: str
    workload: str
    figure: str
    sense: Literal["at most", "at least"]
    limit: float
    over: str | None = None
    beside: str | None = None
    """Another figure of the workload that is shown with it, and not judged."""
    beside_means: str = ""

    @property
    def text(self) -> str:
        what = f"{self.contender}, {self.workload}, {self.figure}"
        over = "" if self.over is None else f" x {self.over}'s"
        return f"{what}: {self.sense} {self.limit:g}{over}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A bar and what was measured; `value` and `kept` are None where something is missing."""

    bar: Bar
    text: str
    value: float | None
    kept: bool | None
    beside: float | None = None


def verdicts(measurements: Sequence[Measurement], bars: Sequence[Bar]) -> tuple[Verdict, ...]:
    """Each bar against the medians."""
    return tuple(_verdict(measurements, bar) for bar in bars)


def all_bars() -> tuple[Bar, ...]:
    """The bars of the project's CPU engine, in the order they were set."""
    return (*_decode_bars(), *_throughput_bars(), *_arrival_bars(), *_footprint_bars())


def _decode_bars() -> list[Bar]:
    pairs = (
        ("tandem bf16", "llama.cpp bf16", 1.0),
        ("tandem bf16", "vllm bf16", 0.6),
        ("tandem int8", "llama.cpp Q8_0", 0.7),
        ("tandem int4", "llama.cpp Q4_1", 0.7),
    )
    return [Bar(name, "stream", "tpot_ms", "at most", x, base) for name, base, x in pairs]


def _throughput_bars() -> list[Bar]:
    output, prompt = "output_tokens_per_s", "prompt_tokens_per_s"
    rows = (
        ("tandem bf16", "concurrency-8", output, 1.2),
        ("tandem bf16", "concurrency-32", output, 1.15),
        ("tandem w8a8", "concurrency-8", output, 1.7),
        ("tandem w8a8", "concurrency-32", output, 2.0),
        ("tandem w8a8 int8-KV", "concurrency-8", output, 1.7),
        ("tandem w8a8 int8-KV", "concurrency-32", output, 2.0),
        ("tandem bf16", "prefill-1024", prompt, 1.1),
        ("tandem bf16", "prefill-4096", prompt, 1.4),
        ("tandem w8a8", "prefill-1024", prompt, 1.6),
        ("tandem w8a8", "prefill-4096", prompt, 1.8),
    )
    return [Bar(name, load, figure, "at least", x, "vllm bf16") for name, load, figure, x in rows]


def _arrival_bars() -> list[Bar]:
    worst = "worst_gap_ms"
    loads = ("arrival-2048", "arrival-7936")
    bars = []
    for pair, load in product(("tandem 1P+1D bf16", "tandem 1P+1D bf16 int8-KV"), loads):
        bars += [
            Bar(pair, load, "worst_gap_over_own_median", "at most", 3.0),
            Bar(pair, load, worst, "at most", 1 / 20, "vllm bf16"),
            Bar(pair, load, worst, "at most", 1 / 20, "llama.cpp bf16"),
            Bar(pair, load, worst, "at most", 1 / 4, "vllm bf16 chunks 256"),
            Bar(pair, load, "p99_over_quiet_p99", "at most", 1.3),
            Bar(pair, load, "p99_ms", "at most", 1 / 5, "tandem unchunked bf16"),
        ]
    return bars


def _footprint_bars() -> list[Bar]:
    return [
        Bar("tandem 1P+1D by hand bf16", "start", "start_s", "at most", 5.0),
        Bar("tandem 1P+1D bf16", "start", "start_s", "at most", 12.0),
        # 2.5 GB of the memory of P, D, router and Ray
        Bar(
            "tandem 1P+1D bf16",
            MEMORY,
            START_MIB,
            "at most",
            2_500_000_000 / 2**20,
            beside=TOTAL_MIB,
            beside_means=(
                "under load; what grows is the cache of prompts, as far as "
                "cache.cpu_memory_utilization lets it"
            ),
        ),
    ]


def _verdict(measurements: Sequence[Measurement], bar: Bar) -> Verdict:
    figure = Figure(bar.workload, bar.figure, bar.figure)
    if bar.over is not None:
        value = ratio(measurements, figure, bar.contender, bar.over)
    else:
        value = _median(measurements, bar, bar.figure)
    kept = None if value is None else _keeps(value, bar)
    beside = None if bar.beside is None else _median(measurements, bar, bar.beside)
    return Verdict(bar, bar.text, value, kept, beside)


def _median(measurements: Sequence[Measurement], bar: Bar, figure: str) -> float | None:
    seen = values(measurements, Figure(bar.workload, figure, figure), bar.contender)
    return median(seen.values()) if seen else None


def _keeps(value: float, bar: Bar) -> bool:
    return value <= bar.limit if bar.sense == "at most" else value >= bar.limit
