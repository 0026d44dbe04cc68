"""What runs on this machine: a directory for each `tandem serve`, with a record, a lock and logs.

run/20260101-120000-4711/run.json     rewritten when a process is replaced; gone after a stop
                         lock         held for as long as the serving process lives
                         logs/*.log   kept for the last few runs
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from cluster.shell import Ready

KEPT_RUNS = 5


@dataclass(frozen=True, slots=True)
class Run:
    """One `tandem serve`, as other processes see it."""

    run_id: str
    pid: int
    model: str
    http_address: str
    grpc_address: str
    ray_address: str
    temp_dir: str
    """Ray's files of a private cluster; empty when it joined an existing one."""
    log_dir: str
    processes: tuple[Ready, ...] = ()
    http_certificate: str = ""
    """File with the certificate that HTTP shows; empty: it is plain."""

    @property
    def http_url(self) -> str:
        """Without a path."""
        return f"{'https' if self.http_certificate else 'http'}://{self.http_address}"


class RunDirectory:
    """The directory of the run that this process is."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log_dir = path / "logs"

    @property
    def run_id(self) -> str:
        return self.path.name

    def write(self, run: Run) -> None:
        """Replaces the record in one step: a reader sees the old one or the new one."""
        fresh = self.path / "run.json.new"
        fresh.write_text(json.dumps(asdict(run), indent=1))
        fresh.replace(self.path / "run.json")

    def forget(self) -> None:
        """Removes the record: the run is over. Idempotent."""
        (self.path / "run.json").unlink(missing_ok=True)


@contextlib.contextmanager
def new_run(root: Path) -> Iterator[RunDirectory]:
    """A locked directory for a run that begins now; its record vanishes at the end."""
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    prefix = datetime.now().strftime("%Y%m%d-%H%M%S-")
    directory = RunDirectory(Path(tempfile.mkdtemp(prefix=prefix, dir=root)))
    directory.log_dir.mkdir()
    with (directory.path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _prune(root)
        try:
            yield directory
        finally:
            directory.forget()


def live_runs(root: Path) -> list[Run]:
    """Runs whose process lives, oldest first."""
    return [run for path, run in _records(root) if _is_locked(path)]


def dead_runs(root: Path) -> list[tuple[Path, Run]]:
    """Runs that ended without cleaning up, and where their records are."""
    return [(path, run) for path, run in _records(root) if not _is_locked(path)]


def latest_log_dir(root: Path) -> Path | None:
    """Logs of the newest run, alive or not."""
    logs = [path / "logs" for path in _directories(root) if (path / "logs").is_dir()]
    return logs[-1] if logs else None


def _records(root: Path) -> Iterator[tuple[Path, Run]]:
    for path in _directories(root):
        with contextlib.suppress(FileNotFoundError):  # it stopped while we looked
            yield path, _read(path / "run.json")


def _read(file: Path) -> Run:
    fields = json.loads(file.read_text())
    processes = tuple(Ready(**process) for process in fields.pop("processes"))
    return Run(**fields, processes=processes)


def _directories(root: Path) -> list[Path]:
    return sorted(path for path in root.glob("*-*") if path.is_dir())


def _is_locked(path: Path) -> bool:
    """Whether the run's process lives: a lock dies with its process, a pid may be reused."""
    try:
        descriptor = os.open(path / "lock", os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        # Shared, or two who look at once would take each other for the run
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _prune(root: Path) -> None:
    """Drops the oldest finished runs; a record still there is cleaned up by `sweep` first."""
    finished = [p for p in _directories(root) if not _is_locked(p) and not _has_record(p)]
    for path in finished[:-KEPT_RUNS]:
        shutil.rmtree(path, ignore_errors=True)


def _has_record(path: Path) -> bool:
    return (path / "run.json").exists()
