"""The actor of a rank that follows its group's leader."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os

from cluster.priority import give_way
from cluster.ray_actors import Home, Refusal, move_in, on_this_node
from cluster.shell import End, Ready
from core.config import Config
from core.errors import TandemError
from core.request import Phase
from engine.rendezvous import Rendezvous

log = logging.getLogger(__name__)


class RankActor:
    """Rank `rank` > 0 of a worker of this role."""

    def __init__(self, home: Home, config: Config, role: Phase, rank: int) -> None:
        move_in(home, config)
        give_way(config.worker, role)
        self._name = home.name
        self._config = on_this_node(config)
        self._rank = rank

    async def start(self, at: Rendezvous) -> Ready | Refusal:
        """Joins the group and loads. Call once, first."""
        try:
            # Imports torch, which takes seconds
            module = await asyncio.to_thread(importlib.import_module, "cluster.rank_shell")
            self._shell = module.RankShell(self._config, self._rank)
            await self._shell.start(at, log.info)
        except TandemError as error:
            log.error("start refused: %s", error.message)
            return Refusal(error.code, error.message)
        return Ready(self._name, os.getpid(), "")

    async def ping(self) -> None:
        """Answers if the process runs and its event loop turns."""

    async def wait_ended(self) -> End:
        """Why the rank was lost. A group that its leader has ended is the leader's to tell."""
        try:
            await self._shell.wait_failed()
        except TandemError as error:
            return End(error.message)
        await asyncio.Event().wait()
        raise AssertionError

    async def stop(self, grace_s: float) -> None:
        await self._shell.stop(grace_s)
