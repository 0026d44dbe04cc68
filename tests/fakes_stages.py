"""At which stage requests are when they are given up, and when they have come to one.

A worker's step loop is the one place where a cancel takes effect, so it is where stages are told
apart: the role is looked at just before it handles the cancel. Requests are known by their cache
salt, which clients choose.
"""

from __future__ import annotations

import asyncio
import enum
from collections import Counter
from collections.abc import Callable
from typing import cast

from fakes_observed_worker import ObservedWorker

from decode_worker.role import DecodeRole
from engine.plan import StepPlan
from engine.role import Cancel, Role
from engine.sequence import SequenceStatus
from kv_transfer.events import BlocksArrived, PullClosed, PullEvent
from kv_transfer.receiver import Receiver
from prefill_worker.role import PrefillRole


class Stage(enum.Enum):
    """Of one leg of an attempt."""

    QUEUED_AT_P = "queued at P"
    STARTED = "started at P, and D has not reserved yet"
    MID_PREFILL = "computed in part, and D pulls"
    LEASED = "computed, and D has not everything yet"
    QUEUED_AT_D = "queued at D before its transfer"
    AWAITED = "blocks reserved at D, none there yet"
    IMPORTING = "some blocks are there"
    TRANSFERRED = "all blocks are there, and D has not stepped it yet"
    DECODING = "decoding"
    SOME_CHOICES_ENDED = "decoding, some of its choices have ended"
    PREEMPTED = "preempted"
    OVER = "over or never begun"


class Stages:
    """Counts cancels by stage, and tells who waits for one. Counters are read when all is over."""

    def __init__(self, p: ObservedWorker, d: ObservedWorker) -> None:
        self.counts: Counter[Stage] = Counter()
        self._loop = asyncio.get_running_loop()
        self._awaited: dict[tuple[str, Stage], asyncio.Event] = {}
        self._prefill = cast(PrefillRole, p.parts.step_loop._role)
        self._decode = cast(DecodeRole, d.parts.step_loop._role)
        self._registry = cast(Receiver, d.parts.receiver)._registry
        self._arrived: set[str] = set()
        self._watch(self._prefill, self._stage_at_p, self._look_at_p)
        self._watch(self._decode, self._stage_at_d, self._look_at_d)
        self._watch_pulls()

    def reached(self, salt: str, stage: Stage) -> asyncio.Event:
        """Set once the request of this salt is seen at this stage."""
        return self._awaited.setdefault((salt, stage), asyncio.Event())

    def _watch(
        self, role: Role, stage_of: Callable[[str], Stage], look: Callable[[], None]
    ) -> None:
        handle, schedule = role.handle, role.schedule

        def handle_and_note(message: object, now: float) -> None:
            if isinstance(message, Cancel) and not message.choices:
                self.counts[stage_of(message.transfer_id)] += 1
            handle(message, now)

        def schedule_and_look(now: float) -> StepPlan | None:
            look()
            plan = schedule(now)
            look()
            return plan

        role.handle = handle_and_note  # type: ignore[method-assign]
        role.schedule = schedule_and_look  # type: ignore[method-assign]

    def _watch_pulls(self) -> None:
        """What has arrived is known before D's step loop takes it."""
        on_event = self._registry._on_event

        def pass_on(event: PullEvent) -> None:
            on_event(event)
            task = self._decode._tasks.get(event.transfer_id)
            if task is not None and isinstance(event, BlocksArrived):
                self._arrived.add(event.transfer_id)
                self._tell(task.attempt.cache_salt, Stage.IMPORTING)
            if task is not None and isinstance(event, PullClosed):
                self._tell(task.attempt.cache_salt, Stage.TRANSFERRED)

        self._registry._on_event = pass_on

    def _look_at_p(self) -> None:
        for transfer_id, task in self._prefill._tasks.items():
            self._tell(task.sequence.attempt.cache_salt, self._stage_at_p(transfer_id))

    def _look_at_d(self) -> None:
        for transfer_id, task in self._decode._tasks.items():
            self._tell(task.attempt.cache_salt, self._stage_at_d(transfer_id))

    def _tell(self, salt: str, stage: Stage) -> None:
        event = self._awaited.get((salt, stage))
        if event is not None:
            self._loop.call_soon_threadsafe(event.set)

    def _stage_at_p(self, transfer_id: str) -> Stage:
        task = self._prefill._tasks.get(transfer_id)
        if task is None:
            return Stage.LEASED if transfer_id in self._prefill._lender.open else Stage.OVER
        if task.started_at is None:
            return Stage.QUEUED_AT_P
        # Another thread's, which this one only asks
        return Stage.MID_PREFILL if transfer_id in self._registry._pulls else Stage.STARTED

    def _stage_at_d(self, transfer_id: str) -> Stage:
        task = self._decode._tasks.get(transfer_id)
        if task is None or not task.sequences:
            return Stage.OVER
        if task.sequences[0].status is SequenceStatus.IMPORTING:
            if transfer_id not in self._registry._pulls:
                return Stage.TRANSFERRED
            return Stage.IMPORTING if transfer_id in self._arrived else Stage.AWAITED
        if transfer_id in self._decode._scheduler._to_import:
            return Stage.QUEUED_AT_D
        if any(_was_preempted(s.status, s.num_output_tokens) for s in task.sequences):
            return Stage.PREEMPTED
        if task.stepped_at is None:
            return Stage.TRANSFERRED
        ended = len(task.sequences) < len(task.attempt.choices)
        return Stage.SOME_CHOICES_ENDED if ended else Stage.DECODING


def _was_preempted(status: SequenceStatus, num_output_tokens: int) -> bool:
    """A choice that waits with its first token alone has never run."""
    return status is SequenceStatus.WAITING and num_output_tokens > 1
