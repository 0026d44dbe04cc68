"""Where the ranks of a group meet: what a leader tells to whoever starts the others."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where a leader listens. Who knows the token is taken for a rank of its group."""

    host: str
    plan_port: int
    """Of the channel on which plans arrive."""
    store_port: int
    """Of the store on which the group for collectives is built."""
    token: str = field(repr=False)
    size: int = 2
    """Ranks of the group, the leader included."""
