"""A worker of several ranks, by hand: its leader is a managed process, the others its children."""

from __future__ import annotations

import asyncio
import signal

from bench.chaos.process import ManagedProcess, command_of, send_signal, session_members

_RANK = "cluster.rank_process"


def other_ranks(leader: ManagedProcess) -> list[int]:
    """Pids of all ranks but the leader, in the order in which they were started."""
    return [pid for pid in sorted(session_members(leader.pid)) if _RANK in command_of(pid)]


def signal_rank(leader: ManagedProcess, number: signal.Signals) -> None:
    """To the last one. Nothing happens if there is none."""
    for pid in other_ranks(leader)[-1:]:
        send_signal(pid, number)


async def has_ended_within(leader: ManagedProcess, within_s: float) -> bool:
    """Whether the group gives itself up, as one does that has lost a rank."""
    try:
        async with asyncio.timeout(within_s):
            await leader.until_ended()
    except TimeoutError:
        return False
    return True
