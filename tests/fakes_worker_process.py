"""Real workers as processes of their own, started as an operator would, to be killed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fakes_process import Child, child, tandem
from fakes_real_house import SETTINGS

from core.config import StateConfig
from core.request import Phase


@dataclass
class WorkerProcess:
    """One running `tandem prefill-worker` or `decode-worker`."""

    address: str
    child: Child
    killed: bool = False

    def kill(self) -> None:
        """SIGKILL; returns when it is gone. It can't say goodbye to anybody."""
        self.killed = True
        self.child.process.kill()
        self.child.end()


@contextlib.contextmanager
def worker_processes(
    state: StateConfig, roles: Sequence[Phase], faults: str = ""
) -> Iterator[dict[str, WorkerProcess]]:
    """Ready workers by their ids (`prefill-0`, `prefill-1`, ...); all gone after the block.

    `faults` is a spec of core/faults.py, which names the workers that it is for.
    """
    names = [f"{role.value}-{roles[:i].count(role)}" for i, role in enumerate(roles)]
    with contextlib.ExitStack() as stack:
        children = {
            name: stack.enter_context(child(_command(state, role, name, faults)))
            for name, role in zip(names, roles, strict=True)
        }
        yield {
            name: WorkerProcess(started.wait_for(f"{name} ready:").split()[-1], started)
            for name, started in children.items()
        }


def _command(state: StateConfig, role: Phase, worker_id: str, faults: str) -> list[str]:
    overrides = [
        *SETTINGS,
        "state.backend=redis",
        f"state.redis_url={state.redis_url}",
        f"state.namespace={state.namespace}",
        f"faults.spec={faults}",
    ]
    options = [option for override in overrides for option in ("--set", override)]
    return tandem(f"{role.value}-worker", "--id", worker_id, *options)
