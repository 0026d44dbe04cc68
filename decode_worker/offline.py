"""A decode worker without a network: attempts in, tokens out, in this thread.

The same scheduler, pool, runner and sampler as in the cluster, in combined mode (it computes
prompts itself); for offline throughput, comparisons and tests of the whole engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from core.clock import Clock, MonotonicClock
from core.config import Config
from core.errors import TandemError
from core.handoff import Handoff
from core.load import LoadReport
from core.request import Attempt, AttemptFailed, TokenEvent
from decode_worker.build import build_decode_role
from engine.batch import flatten, sample_rows
from engine.builder import Engine, build_engine
from engine.role import Cancel, Submit
from protos.codec import WorkerEvent
from text.hub import resolve
from text.model_card import load_card

Outputs = dict[tuple[str, int], list[TokenEvent]]
"""Token events by (transfer_id, choice)."""


class OfflineEngine:
    """One engine with a decode role, stepped by its caller."""

    def __init__(self, engine: Engine, config: Config, clock: Clock | None = None) -> None:
        self.engine = engine
        self._clock = clock or MonotonicClock()
        self._role = build_decode_role(engine, config.scheduler, _NoReceiver(), engine.storage)

    @classmethod
    def load(
        cls, config: Config, progress: Callable[[str], None] = lambda _: None
    ) -> OfflineEngine:
        """Fetches, loads and warms up the configured model. Raises ConfigError."""
        card = load_card(resolve(config.model))
        return cls(build_engine(config, card, num_sharers=1, progress=progress), config)

    def submit(self, attempt: Attempt) -> None:
        """Queues an attempt; what becomes of it is among the events of later steps."""
        state = self.engine.grammars.compile(attempt.grammar).start() if attempt.grammar else None
        self._role.handle(Submit(attempt, grammar=state), self._clock.now())

    def cancel(self, transfer_id: str) -> None:
        self._role.handle(Cancel(transfer_id), self._clock.now())

    @property
    def num_unfinished(self) -> int:
        return self._role.num_unfinished

    def report(self) -> LoadReport:
        return self._role.load()

    def step(self) -> list[WorkerEvent]:
        """Runs one step, if there is anything to compute; returns what it yielded."""
        plan = self._role.schedule(self._clock.now())
        if plan is not None:
            rows = sample_rows(plan, self.engine.eos_token_ids)
            step = flatten(plan, self.engine.pool.block_size)
            self._role.complete(plan, self.engine.runner.execute(step, rows), self._clock.now())
        return self._role.take_events()

    def generate(self, attempts: Iterable[Attempt]) -> Outputs:
        """Runs all attempts to their ends. Raises TandemError if one of them fails."""
        outputs: Outputs = {}
        for attempt in attempts:
            self.submit(attempt)
            outputs |= {(attempt.transfer_id, choice): [] for choice in attempt.choices}
        events = self._role.take_events()
        while True:
            _collect(events, outputs)
            if self.num_unfinished == 0:
                return outputs
            events = self.step()


def _collect(events: list[WorkerEvent], outputs: Outputs) -> None:
    for event in events:
        if isinstance(event, TokenEvent):
            outputs[event.transfer_id, event.choice].append(event)
        elif isinstance(event, AttemptFailed):
            raise TandemError(f"{event.transfer_id}: {event.message}")


class _NoReceiver:
    """Stands where KV would arrive; nobody hands anything to an offline engine."""

    def pull(self, handoff: Handoff, num_held_blocks: int) -> None:
        raise AssertionError("an offline engine is given no handoffs")

    def abort(self, transfer_id: str) -> None:
        raise AssertionError("an offline engine opens no pulls")
