"""A rank that follows its group's leader, in a process of its own: no gRPC, no store.

start   join the group > load and warm up with everybody > follow the leader's plans
fail    whatever ends the rank ends its group; `wait_failed` tells whoever runs it
stop    the leader says so, or `stop` here
"""

from __future__ import annotations

import asyncio
import contextlib

from cluster.plan import num_sharers
from cluster.shell import Progress
from core.config import Config
from engine.builder import build_rank
from engine.machine import select_device
from engine.rank_group import GroupTimes, Membership
from engine.rank_loop import RankLoop
from engine.rendezvous import Rendezvous
from kv_cache.first_touch import FirstTouch
from kv_transfer.backend import make_links
from kv_transfer.link import LinkMaker
from protos.certificate_files import peer_certificates
from text.hub import resolve
from text.model_card import load_card


class RankShell:
    """Rank `rank` > 0 of a worker. All methods belong to the event loop that called `start`."""

    def __init__(self, config: Config, rank: int) -> None:
        self._config = config
        self._rank = rank
        self._ended: asyncio.Future[None] | None = None
        self._member: Membership | None = None
        self._follower: RankLoop | None = None
        self._links: LinkMaker | None = None

    async def start(self, at: Rendezvous, progress: Progress) -> None:
        """Joins, loads and follows. Raises ConfigError, WorkerLostError."""
        loop = asyncio.get_running_loop()
        self._ended = loop.create_future()
        follower = await asyncio.to_thread(self._load, loop, at, progress)
        self._follower = follower
        follower.start()

    async def wait_failed(self) -> None:
        """Returns when the leader has ended the group; raises what ended this rank otherwise."""
        assert self._ended is not None, "wait for a rank that was started"
        await asyncio.shield(self._ended)

    async def stop(self, grace_s: float) -> None:
        """Waits for the leader to end the group, half of the time; then ends here. Idempotent."""
        if self._ended is not None and self._follower is not None:
            await asyncio.wait((self._ended,), timeout=grace_s / 2)
            await asyncio.to_thread(self._follower.stop, grace_s / 2)
        if self._member is not None and self._links is not None:
            self._member.close()
            self._links.close()

    def _load(
        self, loop: asyncio.AbstractEventLoop, at: Rendezvous, progress: Progress
    ) -> RankLoop:
        config = self._config
        card = load_card(resolve(config.model))
        member = Membership(at, self._rank, group_times(config), select_device())
        self._member = member
        try:
            rank = build_rank(
                config, card, num_sharers=num_sharers(config), progress=progress, tp=member.tp
            )
            self._links = make_links(
                config.kv_transfer.backend,
                host=config.worker.host,
                device=rank.storage.device,
                certificates=peer_certificates(config.tls),
            )
        except BaseException:
            member.close()
            raise
        member.kv_port.serve(rank.storage, self._links)
        member.enter_service()
        on_cpu = rank.storage.device.type == "cpu"
        return RankLoop(
            rank,
            member.plans,
            member.kv_port,
            on_end=lambda error: self._end(loop, error),
            taken=FirstTouch(rank.storage).taken if on_cpu else lambda _: None,
        )

    def _end(self, loop: asyncio.AbstractEventLoop, error: BaseException | None) -> None:
        """From the rank loop's thread."""
        with contextlib.suppress(RuntimeError):  # the event loop has closed
            loop.call_soon_threadsafe(self._set_ended, error)

    def _set_ended(self, error: BaseException | None) -> None:
        assert self._ended is not None
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)


def group_times(config: Config) -> GroupTimes:
    """What all ranks of a group are given to keep up."""
    return GroupTimes(
        start_s=config.cluster.start_timeout_s,
        step_s=config.parallel.step_timeout_s,
        heartbeat_s=config.worker.heartbeat_s,
    )
