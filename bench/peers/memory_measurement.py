"""A server's memory as a measurement: right after its first answer, and the most under load.

start_mib   weights, programs, empty KV; a server that was only paused has none
total_mib   the most seen after a workload: what grew since is mostly the cache of prompts
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bench.peers.memory import ProcessMemory, ServerMemory, total_mib
from bench.peers.results import Measurement
from bench.peers.workloads import MEMORY

START_MIB, TOTAL_MIB = "start_mib", "total_mib"


def memory_measurement(contender: str, repeat: int, memory: ServerMemory) -> Measurement:
    """Of one turn."""
    figures = {TOTAL_MIB: total_mib(memory.most), "num_processes": float(len(memory.most))}
    if memory.start:
        figures[START_MIB] = total_mib(memory.start)
    return Measurement(
        contender,
        MEMORY,
        repeat,
        figures,
        processes_mib=_by_name(memory.most),
        start_processes_mib=_by_name(memory.start),
    )


def with_earlier(made: Measurement, earlier: Measurement | None) -> Measurement:
    """What is to be noted of a turn that went on where an earlier run was cut off.

    The start is the earlier one's, the load that of whichever took more.
    """
    if earlier is None:
        return made
    figures, start = dict(made.figures), made.start_processes_mib
    if START_MIB in earlier.figures:
        figures[START_MIB] = earlier.figures[START_MIB]
        start = earlier.start_processes_mib
    loaded = max(earlier, made, key=lambda measurement: measurement.figures[TOTAL_MIB])
    figures |= {name: loaded.figures[name] for name in (TOTAL_MIB, "num_processes")}
    return replace(
        made, figures=figures, processes_mib=loaded.processes_mib, start_processes_mib=start
    )


def _by_name(processes: Sequence[ProcessMemory]) -> dict[str, float]:
    return {f"{process.name} ({process.pid})": process.pss_mib for process in processes}
