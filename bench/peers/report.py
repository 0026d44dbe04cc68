"""All that a run found, as a value that becomes tables or a JSON file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from bench.peers.bars import Verdict, all_bars, verdicts
from bench.peers.contenders import Contender
from bench.peers.memory_measurement import START_MIB, TOTAL_MIB
from bench.peers.results import Measurement
from bench.peers.summary import Summary, figures_of, summaries
from bench.peers.workloads import MEMORY, Workload
from bench.report import SCHEMA_VERSION, MachineReport


@dataclass(frozen=True, slots=True)
class PeersReport:
    """Figures, ratios and bars, with all measurements that they come from."""

    summaries: tuple[Summary, ...]
    bars: tuple[Verdict, ...]
    bases: tuple[str, ...]
    """Whom ratios are over: our first contender, and every peer."""
    processes_mib: dict[str, dict[str, float]]
    """Each contender's processes under load, in the run of median memory."""
    start_processes_mib: dict[str, dict[str, float]]
    """The same right after the first answer, in the run of median memory then."""
    left_out: dict[str, str]
    """Why contenders are missing, by name."""
    problems: tuple[str, ...]
    busiest_share: float
    """How busy the machine was with something else before a turn, at the worst."""
    settings: dict[str, str]
    measurements: tuple[Measurement, ...]
    machine: MachineReport = field(default_factory=MachineReport)
    schema_version: int = SCHEMA_VERSION


def peers_report(
    measurements: Sequence[Measurement],
    contenders: Sequence[Contender],
    workloads: Sequence[Workload],
    left_out: Mapping[str, str],
    settings: Mapping[str, str],
) -> PeersReport:
    """Sums up the measurements, contenders in the order given."""
    order = {contender.name: place for place, contender in enumerate(contenders)}
    known = sorted(
        (m for m in measurements if m.contender in order), key=lambda m: order[m.contender]
    )
    measured = {m.contender for m in known if m.figures and m.workload != "quiet"}
    ours = [c.name for c in contenders if c.peer is None and c.name in measured][:1]
    peers = [c.name for c in contenders if c.peer is not None and c.name in measured]
    bases = tuple(ours + peers)
    return PeersReport(
        summaries=summaries(known, figures_of(workloads), bases),
        bars=verdicts(known, all_bars()),
        bases=bases,
        processes_mib=_processes(known, TOTAL_MIB, lambda m: m.processes_mib),
        start_processes_mib=_processes(known, START_MIB, lambda m: m.start_processes_mib),
        left_out=dict(left_out),
        problems=tuple(
            f"{m.contender}, {m.workload}, run {m.repeat + 1}: {m.problem}"
            for m in known
            if m.problem is not None
        ),
        busiest_share=max(
            (m.figures["busy_share"] for m in known if m.workload == "quiet"), default=0
        ),
        settings=dict(settings),
        measurements=tuple(known),
    )


def _processes(
    measurements: Sequence[Measurement],
    figure: str,
    processes: Callable[[Measurement], dict[str, float]],
) -> dict[str, dict[str, float]]:
    """Of an even number of runs, the one with less of the middle two."""
    runs: dict[str, list[Measurement]] = defaultdict(list)
    for measurement in measurements:
        if measurement.workload == MEMORY and figure in measurement.figures:
            runs[measurement.contender].append(measurement)
    return {
        name: processes(sorted(seen, key=lambda m: m.figures[figure])[(len(seen) - 1) // 2])
        for name, seen in runs.items()
    }
