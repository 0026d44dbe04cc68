"""Names in the shared memory of this machine, which others use beside us."""

from __future__ import annotations

import os
import time

DEADLINE_S = 240.0


def names() -> set[str]:
    """What lies there now."""
    return set(os.listdir("/dev/shm"))


def assert_none_left(before: set[str]) -> None:
    """Nothing is there to stay that was not `before`.

    What other tests put there meanwhile goes again; what nobody will ever remove does not.
    """
    deadline = time.monotonic() + DEADLINE_S
    while left := names() - before:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)  # nobody tells when a name of another process goes
