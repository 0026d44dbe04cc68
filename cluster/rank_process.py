"""The process of a rank that a worker by hand has started: `python -m cluster.rank_process`.

Its orders come as the first line of standard input; when that closes, whoever started it is gone.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import threading
from dataclasses import asdict, dataclass

from cluster.logs import configure_logging
from core.config import Config
from core.errors import TandemError
from engine.rendezvous import Rendezvous

log = logging.getLogger(__name__)

EXIT_STOPPED, EXIT_FAILED, EXIT_ORPHANED = 0, 1, 3


@dataclass(frozen=True, slots=True)
class RankOrder:
    """What a rank is told: who it is, its settings, and where its group meets."""

    worker_id: str
    rank: int
    config: Config
    at: Rendezvous

    def to_line(self) -> bytes:
        """Not on a command line, which other users can read: it has secrets."""
        order = {
            "worker_id": self.worker_id,
            "rank": self.rank,
            "config": self.config.model_dump(mode="json"),
            "at": asdict(self.at),
        }
        return json.dumps(order).encode() + b"\n"

    @staticmethod
    def from_line(line: bytes) -> RankOrder:
        order = json.loads(line)
        config = Config.model_validate(order["config"])
        return RankOrder(order["worker_id"], order["rank"], config, Rendezvous(**order["at"]))


def main() -> int:
    """Runs the rank until its leader ends the group. Returns the exit status."""
    for number in (signal.SIGINT, signal.SIGTERM):
        # A terminal's Ctrl-C reaches us too, but the leader drains with our help
        signal.signal(number, signal.SIG_IGN)
    order = RankOrder.from_line(sys.stdin.buffer.readline())
    threading.Thread(target=_exit_with_starter, name="starter", daemon=True).start()
    configure_logging(order.config, f"{order.worker_id}/{order.rank}")
    try:
        asyncio.run(_run(order))
    except TandemError as error:
        log.error("rank %d of %s: %s", order.rank, order.worker_id, error.message)
        return EXIT_FAILED
    return EXIT_STOPPED


async def _run(order: RankOrder) -> None:
    from cluster.rank_shell import RankShell

    shell = RankShell(order.config, order.rank)
    await shell.start(order.at, lambda line: log.info("rank %d: %s", order.rank, line))
    try:
        await shell.wait_failed()
    finally:
        await shell.stop(0.0)


def _exit_with_starter() -> None:
    while sys.stdin.buffer.read(4096):
        pass
    os._exit(EXIT_ORPHANED)


if __name__ == "__main__":
    sys.exit(main())
