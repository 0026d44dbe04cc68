"""The door of the house: what every request needs, and who is inside.

HTTP and gRPC are two handles on this one door; each request is a `Generation`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from core.clock import Clock
from core.errors import TandemError
from router.fleet.fleet import Fleet
from router.guard.guard import Guard
from router.life.request_life import LifeSettings
from router.life.served_life import ServedLife
from router.metrics import RouterMetrics
from router.observe.observer import Observer
from router.running import RunningRequests
from router.tenants.call import Call
from router.texts import Texts
from router.visit import Hall, Served, Visit
from text.generation_defaults import GenerationDefaults


@dataclass(frozen=True, slots=True)
class DoorSettings:
    """What the model and the operator allow."""

    model: str
    max_model_len: int
    vocab_size: int
    request_timeout_s: float
    log_prompts: bool
    defaults: GenerationDefaults
    """Of fields that clients leave open."""
    life: LifeSettings


class Door:
    """Everything a request needs, shared by all of them."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        texts: Texts,
        hall: Hall,
        metrics: RouterMetrics,
        observer: Observer,
        settings: DoorSettings,
        clock: Clock,
        guard: Guard | None = None,
    ) -> None:
        self.fleet = fleet
        self.guard = guard
        self.texts = texts
        self.hall = hall
        self.admission = hall.admission
        self.metrics = metrics
        self.observer = observer
        self.settings = settings
        self.clock = clock
        self._lives: set[ServedLife] = set()
        self.running = RunningRequests()
        self._idle = asyncio.Event()
        self._idle.set()

    def enter(self, model: str, call: Call) -> Visit:
        """Takes a place; followed by exactly one `leave`. Raises what `Visit.enter` raises."""
        visit = Visit(self.hall, call)
        try:
            visit.enter(model)
        except TandemError as error:
            self.observer.refused(error.code)
            raise
        self._idle.clear()
        return visit

    def begin(self, life: ServedLife) -> None:
        """The request is tokenised and will now ask for workers."""
        self._lives.add(life)

    def leave(self, outcome: str, life: ServedLife | None, visit: Visit, served: Served) -> None:
        if life is not None:
            self._lives.discard(life)
        visit.leave(outcome, served)
        if self.admission.num_running == 0:
            self._idle.set()

    def end_all(self, error: TandemError) -> None:
        """Every request inside fails with this."""
        for life in tuple(self._lives):
            life.end(error)
        self.hall.line.end_all(error)

    async def drained(self, timeout_s: float) -> bool:
        """Whether the house became empty in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True
