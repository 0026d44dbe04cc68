"""A lock between processes: one works, the others wait for it, with a deadline."""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO

from core.errors import ConfigError


@contextmanager
def file_lock(path: Path, *, timeout_s: float) -> Iterator[None]:
    """Holds the lock file for the block. It vanishes with its process, however that ends.

    Raises ConfigError if another process holds it for longer than `timeout_s`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    acquired: SimpleQueue[IO[str] | OSError] = SimpleQueue()
    given_up = threading.Event()
    # The system call that waits for a lock knows no deadline, so a thread waits in our place.
    threading.Thread(target=_acquire, args=(path, acquired, given_up), daemon=True).start()
    try:
        file = acquired.get(timeout=timeout_s)
    except Empty:
        given_up.set()
        _let_go(acquired)
        raise ConfigError(f"another process holds {path} for more than {timeout_s:.0f} s") from None
    if isinstance(file, OSError):
        raise ConfigError(f"cannot lock {path}: {file}")
    with file:
        yield


def _acquire(
    path: Path, acquired: SimpleQueue[IO[str] | OSError], given_up: threading.Event
) -> None:
    try:
        file = path.open("a")
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError as error:
        acquired.put(error)
        return
    acquired.put(file)
    if given_up.is_set():
        _let_go(acquired)


def _let_go(acquired: SimpleQueue[IO[str] | OSError]) -> None:
    """Unlocks what was won too late; whichever side comes second finds it in the queue."""
    try:
        file = acquired.get_nowait()
    except Empty:
        return
    if not isinstance(file, OSError):
        file.close()
