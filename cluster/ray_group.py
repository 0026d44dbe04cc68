"""Actors placed together: one life of a worker group, or of the router.

place    a placement group reserves room for all ranks on one machine
start    rank 0 leads: it says where the others are to come, and every rank starts
watch    the group fails as one: with the first rank that dies or stops answering
discard  every rank is killed, the placement group removed
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from cluster.ray_actors import Refusal
from cluster.ray_calls import ProcessLostError, call
from cluster.shell import End, Progress, Ready
from core.errors import TandemError
from engine.rendezvous import Rendezvous

log = logging.getLogger(__name__)

PLACE_TIMEOUT_S = 30.0
DISCARD_TIMEOUT_S = 10.0
RANK_SHARE = 0.8
"""Of the time given to a drain or stop; the rest is for the call to come back."""


class NotPlacedError(TandemError):
    """The cluster has no room for a group now."""

    code = "not_placed"
    retryable = True


class StartRefusedError(TandemError):
    """A process said why it won't start; `code` is that of its own error."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.code = refusal.code


@dataclass(frozen=True, slots=True)
class Room:
    """What each rank reserves."""

    num_cpus: float
    num_gpus: float = 0.0
    node: str | None = None
    """Address of the one machine that will do; None: any."""

    @property
    def bundle(self) -> dict[str, float]:
        resources = {"CPU": self.num_cpus, "GPU": self.num_gpus}
        if self.node is not None:
            resources[f"node:{self.node}"] = 0.001  # Ray gives each machine one of its own name
        return {name: amount for name, amount in resources.items() if amount}


@dataclass(frozen=True, slots=True)
class ActorSpec:
    """The class of a rank, and the arguments of its constructor."""

    name: str
    actor: type
    arguments: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Watch:
    """How a group is watched: start deadline, period of pings, and how long one may take."""

    start_timeout_s: float
    ping_s: float
    ping_timeout_s: float


class ActorGroup:
    """A `Replica` made of Ray actors."""

    def __init__(self, ranks: Sequence[ActorSpec], room: Room, watch: Watch) -> None:
        assert ranks, "a group has at least one rank"
        self._ranks = tuple(ranks)
        self._room = room
        self._watch = watch
        self._placement: PlacementGroup | None = None
        self._actors: list[Any] = []

    async def start(self, progress: Progress) -> Ready:
        progress("placing")
        placement = await self._place()
        self._actors = [
            self._create(spec, placement, index) for index, spec in enumerate(self._ranks)
        ]
        leader, *others = self._actors
        meeting = [await self._open_group(leader)] if others else []
        starts = [
            asyncio.ensure_future(self._start_rank(leader)),
            *[asyncio.ensure_future(self._start_rank(rank, *meeting)) for rank in others],
        ]
        # After the starts: an actor takes calls in the order in which they were made.
        relay = asyncio.ensure_future(_relay(leader, progress))
        try:
            replies = await asyncio.gather(*starts)
        finally:
            relay.cancel()
            await asyncio.wait((relay,))
        return replies[0]

    async def wait_ended(self) -> End:
        watches = [asyncio.ensure_future(self._watch_rank(actor)) for actor in self._actors]
        try:
            done, _ = await asyncio.wait(watches, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        finally:
            for watch in watches:
                watch.cancel()

    async def drain(self, timeout_s: float) -> None:
        await call(self._actors[0].drain.remote(RANK_SHARE * timeout_s), timeout_s=timeout_s)

    async def stop(self, grace_s: float) -> None:
        calls = [
            call(actor.stop.remote(RANK_SHARE * grace_s), timeout_s=grace_s)
            for actor in self._actors
        ]
        await asyncio.gather(*calls)

    async def discard(self) -> None:
        actors, self._actors = self._actors, []
        placement, self._placement = self._placement, None
        try:
            async with asyncio.timeout(DISCARD_TIMEOUT_S):
                await asyncio.to_thread(_give_back, actors, placement)
        except TimeoutError:
            log.warning("Ray does not answer: what a dead group held is not given back yet")

    async def _place(self) -> PlacementGroup:
        bundles = [self._room.bundle] * len(self._ranks)
        placement: PlacementGroup = placement_group(bundles, strategy="STRICT_PACK")
        self._placement = placement
        if not await asyncio.to_thread(placement.wait, PLACE_TIMEOUT_S):
            raise NotPlacedError(
                f"no machine has room for {len(self._ranks)} x {self._room.bundle} "
                f"after {PLACE_TIMEOUT_S:g} s"
            )
        return placement

    def _create(self, spec: ActorSpec, placement: PlacementGroup, index: int) -> Any:
        strategy = PlacementGroupSchedulingStrategy(
            placement_group=placement, placement_group_bundle_index=index
        )
        options = {
            "num_cpus": self._room.num_cpus,
            "num_gpus": self._room.num_gpus or None,  # 0 would hide the GPUs from what is started
            # No runtime_env: it would cost a fresh process, and a wait for Ray's agent to be up.
            "scheduling_strategy": strategy,
            "max_restarts": 0,  # the supervisor restarts, with a new placement
        }
        # Ray names a process after its class, and so do `ps` and its logs: ray::tandem-prefill-0.
        named = type(f"tandem-{spec.name}", (spec.actor,), {})
        return ray.remote(named).options(**options).remote(*spec.arguments)

    async def _open_group(self, leader: Any) -> Rendezvous:
        reply: Rendezvous | Refusal = await call(
            leader.open_group.remote(), timeout_s=self._watch.start_timeout_s
        )
        if isinstance(reply, Refusal):
            raise StartRefusedError(reply)
        return reply

    async def _start_rank(self, actor: Any, *arguments: object) -> Ready:
        reply: Ready | Refusal = await call(
            actor.start.remote(*arguments), timeout_s=self._watch.start_timeout_s
        )
        if isinstance(reply, Refusal):
            raise StartRefusedError(reply)
        return reply

    async def _watch_rank(self, actor: Any) -> End:
        ended = asyncio.ensure_future(_end_of(actor))
        try:
            while not ended.done():
                await asyncio.wait((ended,), timeout=self._watch.ping_s)
                if not ended.done():
                    await call(actor.ping.remote(), timeout_s=self._watch.ping_timeout_s)
            return ended.result()
        except ProcessLostError as error:
            return End(error.message)
        finally:
            ended.cancel()


def _give_back(actors: Sequence[Any], placement: PlacementGroup | None) -> None:
    """Blocks, and for as long as Ray's head is away."""
    for actor in actors:
        ray.kill(actor)
    if placement is not None:
        # Also ends whatever still runs in it: a stopped process doesn't hear a kill.
        remove_placement_group(placement)


async def _end_of(actor: Any) -> End:
    try:
        end: End = await call(actor.wait_ended.remote(), timeout_s=None)
    except ProcessLostError as error:
        return End(error.message)
    return end


async def _relay(actor: Any, progress: Progress) -> None:
    """Passes the rank's progress on until cancelled; its death is reported by `start`."""
    seen = 0
    with contextlib.suppress(ProcessLostError):
        while True:
            seen, line = await call(actor.progress_after.remote(seen), timeout_s=None)
            progress(line)
