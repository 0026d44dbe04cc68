"""The memory of a server: every process below the one that was started.

PSS (proportional set size, proc(5)) counts a page that several processes share once in all, so
that the sum over processes is what the server takes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_PSS = re.compile(r"^Pss:\s+(\d+) kB$", re.MULTILINE)
_NAME_LEN = 60


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """One process. `name` is the beginning of its command line."""

    pid: int
    name: str
    pss_mib: float


@dataclass(frozen=True, slots=True)
class ServerMemory:
    """All processes of a server at two moments; empty where it wasn't looked at."""

    start: tuple[ProcessMemory, ...] = ()
    """Right after its first answer."""
    most: tuple[ProcessMemory, ...] = ()
    """When they took most after a workload."""

    def loaded(self, processes: tuple[ProcessMemory, ...]) -> ServerMemory:
        """With what they take after one more workload."""
        return ServerMemory(self.start, max(self.most, processes, key=total_mib))

    def and_then(self, later: ServerMemory) -> ServerMemory:
        """With what the same server takes when it is started otherwise."""
        return ServerMemory(self.start or later.start, max(self.most, later.most, key=total_mib))


def total_mib(processes: Sequence[ProcessMemory]) -> float:
    """The sum over the processes."""
    return sum(process.pss_mib for process in processes)


def tree_memory(root_pid: int, proc: Path = _PROC) -> tuple[ProcessMemory, ...]:
    """The process and all its descendants, largest first; those that end meanwhile are left out."""
    seen = (process_memory(pid, proc) for pid in tree(root_pid, proc))
    return tuple(
        sorted((memory for memory in seen if memory is not None), key=lambda m: -m.pss_mib)
    )


def tree(root_pid: int, proc: Path = _PROC) -> list[int]:
    """The process and all its descendants."""
    children = defaultdict(list)
    for directory in proc.iterdir():
        if directory.name.isdigit() and (parent := _parent(directory)) is not None:
            children[parent].append(int(directory.name))
    found, left = [], [root_pid]
    while left:
        found.append(left.pop())
        left += children[found[-1]]
    return found


def process_memory(pid: int, proc: Path = _PROC) -> ProcessMemory | None:
    """None if the process has ended."""
    try:
        rollup = (proc / str(pid) / "smaps_rollup").read_text()
        command = (proc / str(pid) / "cmdline").read_bytes()
    except OSError:
        return None
    match = _PSS.search(rollup)
    if match is None:
        return None
    name = " ".join(_words(command))[:_NAME_LEN]
    return ProcessMemory(pid, name, int(match[1]) / 1024)


def _words(command: bytes) -> list[str]:
    """The command line without the folders of its words."""
    words = command.decode(errors="replace").split("\0")
    return [word.rsplit("/", 1)[-1] for word in words if word]


def _parent(directory: Path) -> int | None:
    try:
        stat = (directory / "stat").read_text()
    except OSError:
        return None
    # The name in parentheses may hold anything; what follows it is numbers: state, parent ...
    return int(stat.rpartition(")")[2].split()[1])
