"""What a handoff costs: from the end of P's last chunk to the end of D's first step.

    P  | chunk 1 | chunk 2 | ... | last chunk |
    D       pull 1    pull 2  ...              last pull | first step |
                                              |<---- handoff -------->|
    client                                    token 1 --------> token 2

Seen from three sides: by the workers, whose own measure the router's histograms hold; by the router
(durations in each answer); and by the client, as the gap between its first two chunks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bench.client import OpenAIClient, ServerError, Target
from bench.exposition import Histogram, histogram, since
from bench.load_plan import Load, LoadPlan
from bench.load_test import reseeded, send_load, warm_up
from bench.progress import Progress
from bench.record import RequestRecord
from bench.report import SCHEMA_VERSION, MachineReport
from bench.runner import Timer
from bench.stats import Distribution, distribution
from core.metric_names import KV_HANDOFF_SECONDS, TRANSFER_SECONDS

_ONE_AT_A_TIME = Load("concurrency", 1)
_HISTOGRAMS = (KV_HANDOFF_SECONDS, TRANSFER_SECONDS)


@dataclass(frozen=True, slots=True)
class HandoffSide:
    """One server's handoffs. All times in seconds."""

    name: str
    num_requests: int
    ttft_s: Distribution | None
    client_gap_s: Distribution | None
    """Between the first and the second chunk, as the client saw them."""
    reported_s: dict[str, Distribution]
    """Durations that answers reported, by name."""
    histograms_s: dict[str, Histogram]
    """What the server's own histograms took up during the run, where it has them."""


@dataclass(frozen=True, slots=True)
class HandoffReport:
    """Several servers under the same requests."""

    input_len: int
    sides: tuple[HandoffSide, ...]
    machine: MachineReport = field(default_factory=MachineReport)
    schema_version: int = SCHEMA_VERSION


async def compare_handoffs(
    targets: Mapping[str, Target],
    plan: LoadPlan,
    timer: Timer,
    *,
    repeats: int,
    progress: Progress,
) -> HandoffReport:
    """Sends the same requests to each named server, in turn, `repeats` times.

    Raises ServerError if a server can't be asked or a request fails.
    """
    probes = [_Probe(name, target, timer) for name, target in targets.items()]
    try:
        for probe in probes:
            await probe.begin(plan)
        for repeat in range(repeats):
            for probe in probes:
                progress(f"{probe.name}, handoffs, run {repeat + 1} of {repeats}")
                await probe.send(reseeded(plan, repeat))
        sides = [await probe.end() for probe in probes]
    finally:
        for probe in probes:
            probe.close()
    return HandoffReport(plan.inputs.high, tuple(sides))


class _Probe:
    """Collects one server's handoffs over several rounds."""

    def __init__(self, name: str, target: Target, timer: Timer) -> None:
        self.name = name
        self._client = OpenAIClient(target, timer)
        self._timer = timer
        self._records: list[RequestRecord] = []
        self._page_before = ""

    async def begin(self, plan: LoadPlan) -> None:
        await warm_up(self._client, plan, self._timer)
        self._page_before = await self._client.metrics_page()

    async def send(self, plan: LoadPlan) -> None:
        records = await send_load(self._client, plan, _ONE_AT_A_TIME, self._timer)
        for record in records:
            if record.error is not None:
                raise ServerError(f"{self.name}: request failed: {record.error}")
        self._records += records

    async def end(self) -> HandoffSide:
        page_after = await self._client.metrics_page()
        return handoff_side(self.name, self._records, self._page_before, page_after)

    def close(self) -> None:
        self._client.close()


def handoff_side(
    name: str, records: Sequence[RequestRecord], before: str, after: str
) -> HandoffSide:
    """Sums up one server's answers, and its metrics pages from before and after them."""
    names = sorted({name for record in records for name in record.timings})
    observed = {
        metric: since(histogram(before, metric), histogram(after, metric)) for metric in _HISTOGRAMS
    }
    return HandoffSide(
        name=name,
        num_requests=len(records),
        ttft_s=distribution(record.ttft_s for record in records),
        client_gap_s=distribution(record.itl_s[0] for record in records if record.itl_s),
        reported_s={
            name: spread
            for name in names
            if (spread := distribution(r.timings[name] for r in records if name in r.timings))
        },
        histograms_s={metric: seen for metric, seen in observed.items() if seen.count},
    )
