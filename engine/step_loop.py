"""The thread that owns pool, storage and role: take messages, plan, compute, tell.

    post(message)        any thread; wakes the loop
    loop:  take all messages > role.handle > role.schedule > tell
       > executor > role.complete > tell
    stop()               any thread; the loop ends after the current step failure
    telling              in a thread of its own, while the next step computes (teller.py)
    whatever escapes ends the loop and is kept in `failure`; the shell dies of it

Progress is the age of the last step while work is pending: readers compute it from two attributes
that only this thread writes, so that a stuck step shows.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from core.clock import Clock
from core.load import LoadReport
from engine.batch import StepInput, flatten, sample_rows
from engine.plan import StepPlan
from engine.profile_ranges import profile_ranges
from engine.role import Role
from engine.row_failure import RowsFailedError
from engine.sample_row import SampleRow
from engine.sampler import Sampled
from engine.teller import Teller
from protos.codec import WorkerEvent

_IDLE_WAIT_S = 60.0
"""Upper bound of one wait; the loop also wakes for messages and for the role's own deadlines."""


@dataclass(frozen=True, slots=True)
class _Call:
    action: Callable[[], object]


class Executor(Protocol):
    """Computes steps; `engine.runner.ModelRunner` is one."""

    def execute(self, step: StepInput, rows: list[SampleRow]) -> list[Sampled]: ...


class StepLoop:
    """Drives one role on one executor. `publish` is called from one other thread, in order."""

    def __init__(
        self,
        role: Role,
        executor: Executor,
        *,
        block_size: int,
        eos_token_ids: tuple[int, ...],
        clock: Clock,
        publish: Callable[[list[WorkerEvent]], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._role = role
        self._executor = executor
        self._block_size = block_size
        self._eos_token_ids = eos_token_ids
        self._clock = clock
        self._teller = Teller(publish, self._fail)
        self._on_failure = on_failure
        self._range = profile_ranges()
        self._inbox: deque[object] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        self._busy_since: float | None = None
        self._load = role.load()
        self._num_unfinished = 0
        self._when_idle: list[Callable[[], object]] = []
        self._thread = threading.Thread(target=self._run, name="tandem-step-loop", daemon=True)

    def start(self) -> None:
        self._teller.start()
        self._thread.start()

    def post(self, message: object) -> None:
        """Hands a message to the role. Thread-safe."""
        with self._wake:
            self._inbox.append(message)
            self._wake.notify()

    def call(self, action: Callable[[], object]) -> None:
        """Runs `action` in the loop's thread between two steps. Thread-safe."""
        self.post(_Call(action))

    def when_idle(self, action: Callable[[], object]) -> None:
        """Runs `action` once nothing posted before is left unfinished. Thread-safe."""
        self.call(lambda: self._when_idle.append(action))

    @property
    def num_unfinished(self) -> int:
        """Attempts and leases after the last turn. Thread-safe."""
        return self._num_unfinished

    def stop(self, timeout_s: float) -> bool:
        """Ends the loop after its current step; False if it didn't end in time."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def load(self) -> LoadReport:
        """The last step's load with the age of progress now. Thread-safe."""
        busy_since = self._busy_since
        age = 0.0 if busy_since is None else self._clock.now() - busy_since
        return replace(self._load, last_step_age_s=age)

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._turn()
        except Exception as error:
            logging.getLogger(__name__).exception("the step loop failed")
            self._fail(error)
        self._teller.stop()

    def _fail(self, error: BaseException) -> None:
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._on_failure(error)

    def _turn(self) -> None:
        for message in self._take():
            if isinstance(message, _Call):
                message.action()
            else:
                self._role.handle(message, self._clock.now())
        with self._range("schedule"):
            plan = self._role.schedule(self._clock.now())
        self._tell()  # before computing: a pull may open while its first chunk is computed
        if plan is not None:
            self._step(plan)
        self._load = self._role.load()
        self._busy_since = None if plan is None else self._clock.now()
        self._tell()
        self._num_unfinished = self._role.num_unfinished
        if self._num_unfinished == 0 and self._when_idle:
            waiting, self._when_idle = self._when_idle, []
            self._teller.flush()
            for action in waiting:
                action()

    def _tell(self) -> None:
        events = self._role.take_events()
        if events:
            self._teller.tell(events)

    def _step(self, plan: StepPlan) -> None:
        """Computes and completes the plan. Attempts that no token can be drawn for fail alone: the
        step is dropped, and planned again without them."""
        with self._range("flatten"):
            rows = sample_rows(plan, self._eos_token_ids)
            step = flatten(plan, self._block_size)
        try:
            sampled = self._executor.execute(step, rows)
        except RowsFailedError as error:
            owners = [
                c.sequence.transfer_id
                for c in plan.chunks
                for _ in range(c.num_scored + len(c.sample_choices))
            ]
            for transfer_id in {owners[row] for row in error.rows}:
                self._role.fail(transfer_id, error.code, error.message)
            return
        with self._range("complete"):
            self._role.complete(plan, sampled, self._clock.now())

    def _take(self) -> list[object]:
        """All messages; while no step is due, waits for one or for the role's deadline."""
        with self._wake:
            if self._busy_since is None:
                self._wake.wait_for(lambda: bool(self._inbox) or self._stopping, self._patience())
                self._busy_since = self._clock.now() if self._inbox else None
            messages = list(self._inbox)
            self._inbox.clear()
            return messages

    def _patience(self) -> float:
        deadline = self._role.next_deadline()
        if deadline is None:
            return _IDLE_WAIT_S
        return min(_IDLE_WAIT_S, max(0.0, deadline - self._clock.now()))
