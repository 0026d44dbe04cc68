"""Which processes stand back where cores are short."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="threads have no niceness here")

# A process of its own: niceness only ever goes up.
SCRIPT = """
import os, sys, threading
from cluster.priority import give_way
from core.config import WorkerConfig
from core.request import Phase

done = threading.Event()
older = threading.Thread(target=done.wait)
older.start()
before = os.getpriority(os.PRIO_PROCESS, 0)
give_way(WorkerConfig(prefill_nice=int(sys.argv[2])), Phase(sys.argv[1]))
younger = threading.Thread(target=done.wait)
younger.start()
threads = [threading.main_thread(), older, younger]
levels = [os.getpriority(os.PRIO_PROCESS, thread.native_id) for thread in threads]
done.set()
print(before, *levels)
"""


def levels(role: str, prefill_nice: int, *, started_at: int = 0) -> tuple[int, list[int]]:
    """The niceness before, and that of a process's threads afterwards."""
    command = [sys.executable, "-c", SCRIPT, role, str(prefill_nice)]
    nice = ["nice", "-n", str(started_at)] if started_at else []
    output = subprocess.run([*nice, *command], check=True, capture_output=True, text=True).stdout
    before, *after = [int(text) for text in output.split()]
    return before, after


def test_every_thread_of_a_prefill_worker_stands_back() -> None:
    before, after = levels("prefill", 10)
    assert after == [max(before, 10)] * 3


def test_a_decode_worker_keeps_its_place() -> None:
    before, after = levels("decode", 10)
    assert after == [before] * 3


def test_zero_makes_all_equal() -> None:
    before, after = levels("prefill", 0)
    assert after == [before] * 3


def test_a_worker_started_with_less_keeps_less() -> None:
    before, after = levels("prefill", 10, started_at=19)
    assert after == [before] * 3 == [19] * 3
