"""What a killed run leaves behind: Ray's processes and its temporary directory."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from cluster.run_record import dead_runs

_DYING_S = 3.0
"""What a killed process may take to be gone, on a busy machine."""
_LOOK_AGAIN_S = 0.01
"""They are others' children, and may start more: there is no event to wait for."""


def processes_of(temp_dir: Path, proc: Path = Path("/proc")) -> set[int]:
    """Processes that were started with a path under `temp_dir`, or hold a file of it open.

    Ray's processes rename themselves, but every one of them logs into that directory, whose name
    is unique to the run.
    """
    needle = os.fsencode(f"{temp_dir}/")
    own = os.getpid()
    return {
        int(entry.name)
        for entry in proc.iterdir()
        if entry.name.isdigit() and int(entry.name) != own and _mentions(entry, needle)
    }


def remove(temp_dir: Path) -> None:
    """Kills what still runs out of `temp_dir`, also what that starts meanwhile, and deletes it once
    all are gone, or after `_DYING_S`. Idempotent."""
    deadline = time.monotonic() + _DYING_S
    while left := processes_of(temp_dir):
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() >= deadline:
            break
        time.sleep(_LOOK_AGAIN_S)
    shutil.rmtree(temp_dir, ignore_errors=True)


def sweep(root: Path) -> int:
    """Cleans up after runs whose process was killed. Returns how many there were."""
    dead = dead_runs(root)
    for path, run in dead:
        if run.temp_dir:
            remove(Path(run.temp_dir))
        (path / "run.json").unlink(missing_ok=True)
    return len(dead)


def _mentions(entry: Path, needle: bytes) -> bool:
    """False for processes of other users, and for those that end while we look."""
    try:
        if needle in (entry / "cmdline").read_bytes():
            return True
        return any(needle in link for link in _open_files(entry / "fd"))
    except OSError:
        return False


def _open_files(directory: Path) -> Iterator[bytes]:
    for descriptor in directory.iterdir():
        with contextlib.suppress(FileNotFoundError):
            yield os.fsencode(os.readlink(descriptor))
