"""The door of the house: what every request needs, and who is inside.

HTTP and gRPC are two handles on this one door; each request is a `Generation`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from core.clock import Clock
from core.errors import TandemError
from router.admission import Admission
from router.fleet.fleet import Fleet
from router.life.request_life import LifeSettings, RequestLife
from router.limits import check_model
from router.metrics import RouterMetrics
from router.observe.observer import Observer
from router.texts import Texts


@dataclass(frozen=True, slots=True)
class DoorSettings:
    """What the model and the operator allow."""

    model: str
    max_model_len: int
    vocab_size: int
    request_timeout_s: float
    log_prompts: bool
    life: LifeSettings


class Door:
    """Everything a request needs, shared by all of them."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        texts: Texts,
        admission: Admission,
        metrics: RouterMetrics,
        observer: Observer,
        settings: DoorSettings,
        clock: Clock,
    ) -> None:
        self.fleet = fleet
        self.texts = texts
        self.admission = admission
        self.metrics = metrics
        self.observer = observer
        self.settings = settings
        self.clock = clock
        self._lives: set[RequestLife] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    def enter(self, model: str) -> None:
        """Takes a place; followed by exactly one `leave`.

        Raises ModelNotFoundError, and what `Admission.enter` raises.
        """
        check_model(model, self.settings.model)
        self.admission.enter()
        self._idle.clear()

    def begin(self, life: RequestLife) -> None:
        """The request is tokenised and will now ask for workers."""
        self._lives.add(life)

    def leave(self, life: RequestLife | None) -> None:
        if life is not None:
            self._lives.discard(life)
        self.admission.leave()
        if self.admission.num_running == 0:
            self._idle.set()

    def end_all(self, error: TandemError) -> None:
        """Every request inside fails with this."""
        for life in tuple(self._lives):
            life.end(error)

    async def drained(self, timeout_s: float) -> bool:
        """Whether the house became empty in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True
