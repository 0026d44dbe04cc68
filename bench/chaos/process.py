"""One process that faults are done to: started, found ready, stopped, killed, gone.

started in a session of its own -> every line of its output goes to a log, one of them says "ready"
  -> signals -> ended: asked for, or a crash -> whatever is left in its session is killed
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from asyncio.subprocess import PIPE, STDOUT, Process
from collections import Counter, deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from bench.chaos.verdict import Memory
from bench.client import ServerError

_KEPT_LINES = 25
_PSS = re.compile(r"^(Pss|Pss_Anon|Pss_Shmem):\s+(\d+) kB$", re.MULTILINE)
_FAULT_LINE = re.compile(r"fault: (\w+) #\d+: delay ([\d.e-]+) s, (\w+)")


@dataclass(frozen=True, slots=True)
class Program:
    """What is run."""

    name: str
    command: tuple[str, ...]
    ready: str
    """Text of the line that says that it serves."""


class ManagedProcess:
    """One life of a program. Create with `start`."""

    def __init__(self, program: Program, process: Process, log: Path) -> None:
        assert process.stdout is not None
        self.program = program
        self.faults: Counter[str] = Counter()
        """Faults of `core.faults` that it carried out, by point and action."""
        self.address = ""
        """The last word of the line that said ready."""
        self.end_is_asked_for = False
        self.may_end = False
        """A fault has hit it that it need not survive."""
        self.left: list[int] = []
        """Children that it did not end."""
        self._process = process
        self._stream = process.stdout
        self._log = log
        self._tail: deque[str] = deque(maxlen=_KEPT_LINES)
        self._ready = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, program: Program, log: Path) -> ManagedProcess:
        """Starts it; its output is added to `log`."""
        log.parent.mkdir(parents=True, exist_ok=True)
        process = await asyncio.create_subprocess_exec(
            *program.command,
            stdout=PIPE,
            stderr=STDOUT,
            start_new_session=True,
        )
        return cls(program, process, log)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.returncode is not None

    def said(self) -> str:
        """The end of its output."""
        return "".join(self._tail)

    async def until_ready(self, timeout_s: float) -> None:
        """Raises ServerError, with the end of its output, if it ends first or takes longer."""
        waiting = asyncio.create_task(self._ready.wait())
        await asyncio.wait(
            {waiting, self._reading}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
        waiting.cancel()
        if not self._ready.is_set():
            raise ServerError(f"{self.program.name} is not ready; it said:\n{self.said()}")

    async def until_ended(self) -> int:
        """Its exit status; what it left in its session is killed, and noted in `left`.

        asyncio's own wait would also wait for children that hold the output open.
        """
        await _until_exit(self.pid)
        self.left += end_session(self.pid)
        await asyncio.wait({self._reading})
        return await self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        """Nothing happens if it has ended."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def kill(self) -> None:
        """SIGKILL to it and its children; returns when they are gone."""
        self.end_is_asked_for = True
        self.signal(signal.SIGKILL)
        await self.until_ended()

    async def terminate(self, grace_s: float) -> list[str]:
        """SIGTERM; returns what had to be killed, which is nothing after a clean end."""
        self.end_is_asked_for = True
        if self.has_ended:
            await self.until_ended()
            return []
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
                await self.until_ended()
        except TimeoutError:
            await self.kill()
            return [f"{self.program.name} ({self.pid}) did not end within {grace_s:g} s"]
        return [f"process {pid} of {self.program.name}" for pid in self.left]

    async def _read(self) -> None:
        with self._log.open("ab") as log:
            async for line in _lines(self._stream):
                log.write(line)
                log.flush()
                self._look_at(line.decode(errors="replace"))

    def _look_at(self, line: str) -> None:
        self._tail.append(line)
        if not self._ready.is_set() and self.program.ready in line:
            self.address = line.split()[-1]
            self._ready.set()
        if match := _FAULT_LINE.search(line):
            point, delay, action = match.groups()
            if action != "None":
                self.faults[f"{point} {action.rpartition('.')[2].lower()}"] += 1
            elif float(delay) > 0:
                self.faults[f"{point} delay"] += 1


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process for good, where a pid alone may name another one later."""

    pid: int
    start_ticks: int

    def lives(self) -> bool:
        """Whether it still runs, as itself."""
        return identity_of(self.pid) == self

    def signal(self, number: signal.Signals) -> None:
        """Nothing happens if it has ended."""
        if self.lives():
            send_signal(self.pid, number)


def identity_of(pid: int) -> ProcessIdentity | None:
    """None if there is no such process, or only what its parent has not yet asked for."""
    try:
        words = _stat(Path("/proc") / str(pid))
    except OSError:
        return None
    return None if words[0] == "Z" else ProcessIdentity(pid, int(words[19]))


async def _until_exit(pid: int) -> None:
    """Returns when that child of ours has ended, whoever still holds its files."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(fd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(fd)
        os.close(fd)


def memory_of(name: str, pid: int) -> Memory | None:
    """What it takes now; None if it has ended."""
    try:
        rollup = (Path("/proc") / str(pid) / "smaps_rollup").read_text()
    except OSError:
        return None
    kib = {key: int(value) for key, value in _PSS.findall(rollup)}
    if not kib:
        return None
    return Memory(name, kib["Pss"] / 1024, (kib["Pss_Anon"] + kib["Pss_Shmem"]) / 1024)


def session_members(leader_pid: int) -> list[int]:
    """Every process in the session that this pid leads or led."""
    found = []
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            with contextlib.suppress(OSError):
                if os.getsid(int(directory.name)) == leader_pid and _stat(directory)[0] != "Z":
                    found.append(int(directory.name))
    return found


def send_signal(pid: int, number: signal.Signals) -> None:
    """Nothing happens if there is no such process."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def command_of(pid: int) -> str:
    """What a process is called, with its arguments; empty if it has ended."""
    try:
        words = (Path("/proc") / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return b" ".join(words).decode(errors="replace").strip()


def end_session(leader_pid: int) -> list[int]:
    """Kills what is left in a process's session, and says what that was."""
    left = session_members(leader_pid)
    for pid in left:
        send_signal(pid, signal.SIGKILL)
    return left


def _stat(directory: Path) -> list[str]:
    """State, parent and so on: what follows the name in parentheses, which may hold anything."""
    return (directory / "stat").read_text().rpartition(")")[2].split()


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while True:
        try:
            line = await stream.readline()
        except ValueError:  # longer than the reader's limit: what was read is thrown away
            continue
        if not line:
            return
        yield line
