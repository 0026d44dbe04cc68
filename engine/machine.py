"""What this machine offers a worker: cores, memory, a device."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

import torch

from core.config import ParallelConfig

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"  # of the resident set: proc(5)


def select_device() -> torch.device:
    """The first GPU that this process may use, else the CPU."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def num_threads(parallel: ParallelConfig, num_sharers: int) -> int:
    """Compute threads for one of `num_sharers` ranks on this machine."""
    if parallel.num_threads is not None:
        return parallel.num_threads
    return max(1, len(os.sched_getaffinity(0)) // num_sharers)


def available_memory_bytes(device: torch.device) -> int:
    """Memory to share: a GPU's total; on CPUs what is free for use now, cgroup limits included."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    free = _proc_bytes(_MEMINFO, "MemAvailable")
    limit, used = _cgroup_bytes("memory.max"), _cgroup_bytes("memory.current")
    return free if limit is None or used is None else min(free, max(0, limit - used))


def mark_memory(device: torch.device) -> int:
    """What this process has in use on `device` now; `peak_memory_bytes` counts from here on."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device)
    try:
        _CLEAR_REFS.write_text(_RESET_PEAK)
    except OSError:  # not Linux, or not allowed: what was used for a moment counts as used
        return peak_memory_bytes(device)
    return _proc_bytes(_STATUS, "VmRSS")


def peak_memory_bytes(device: torch.device) -> int:
    """The most memory this process has had in use on `device` since `mark_memory`."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if _STATUS.exists():
        return _proc_bytes(_STATUS, "VmHWM")
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _proc_bytes(file: Path, key: str) -> int:
    for line in file.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0]) * 1024
    raise AssertionError(f"{file} has no {key}")


def _cgroup_bytes(name: str) -> int | None:
    """A value of the unified hierarchy, None where there is no limit or no such hierarchy."""
    try:
        text = (_CGROUP / name).read_text().strip()
    except OSError:
        return None
    return None if text == "max" else int(text)
