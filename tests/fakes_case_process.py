"""A worker of a case house as a process of its own: it can be killed, stopped and told to end."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

from fakes_cases import SETTINGS
from fakes_process import Child, child, tandem

from core.request import Phase

_PATIENT = "worker.heartbeat_s=10"
"""A process that gets no core for a while stays a member."""


def shared_state(redis_url: str) -> tuple[str, ...]:
    """Settings by which processes and the house find each other, and nobody else."""
    return (
        "state.backend=redis",
        f"state.redis_url={redis_url}",
        f"state.namespace={uuid.uuid4().hex}",
    )


@contextlib.contextmanager
def case_process(
    role: Phase, worker_id: str, model: Path, overrides: Sequence[str]
) -> Iterator[Child]:
    """A ready worker with a case house's settings; it is killed at the end if it still runs."""
    command = tandem(f"{role.value}-worker", str(model), "--id", worker_id)
    for setting in (*SETTINGS, _PATIENT, *overrides):
        command += ["--set", setting]
    with child(command) as started:
        started.wait_for(f"{worker_id} ready:")
        yield started
