"""What the supervisor keeps alive: something that starts, may fail, and can be thrown away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from cluster.shell import End, Progress, Ready


class Replica(Protocol):
    """One life of a worker group or of the router."""

    async def start(self, progress: Progress) -> Ready:
        """Places and starts it. Raises TandemError; `discard` it then."""
        ...

    async def wait_ended(self) -> End:
        """Why its life is over, as soon as it is drained, dead or no longer answers."""
        ...

    async def drain(self, timeout_s: float) -> None:
        """Lets it finish what it has."""
        ...

    async def stop(self, grace_s: float) -> None:
        """Ends it in order."""
        ...

    async def discard(self) -> None:
        """Kills what is left of it and gives its resources back. Idempotent, never raises."""
        ...


MakeReplica: TypeAlias = Callable[[], Replica]
"""Makes the next life, which holds nothing yet."""
