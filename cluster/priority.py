"""Prefill workers leave the cores to who has a stream to keep up: decode workers, the router.

On Linux a niceness belongs to a thread, and a new thread takes its maker's.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from core.config import WorkerConfig
from core.request import Phase

_THREADS = Path("/proc/self/task")
_LOWEST = 19


def give_way(worker: WorkerConfig, role: Phase) -> None:
    """Sets the niceness of all threads of a prefill worker's process; never to go before others.

    Does nothing where threads have no niceness of their own.
    """
    if role is not Phase.PREFILL or not worker.prefill_nice or not _THREADS.is_dir():
        return
    for thread in [int(task.name) for task in _THREADS.iterdir()]:
        with contextlib.suppress(OSError):  # it has ended
            nice = os.getpriority(os.PRIO_PROCESS, thread)
            os.setpriority(os.PRIO_PROCESS, thread, min(_LOWEST, max(nice, worker.prefill_nice)))
