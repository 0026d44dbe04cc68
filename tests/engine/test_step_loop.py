"""The thread that drives a role: order, failure, idleness, and an honest age of progress."""

from __future__ import annotations

import threading
from collections.abc import Callable

from fakes_engine import FakeExecutor, reference_output
from fakes_pair import MemoryTransfers, attempt

from core.request import AttemptFailed, TokenEvent
from decode_worker.role import DecodeRole
from decode_worker.scheduler import DecodeLimits, DecodeScheduler
from engine.batch import StepInput
from engine.intake import Limits
from engine.role import Cancel, Submit
from engine.sample_row import SampleRow
from engine.sampler import NonFiniteLogitsError, Sampled
from engine.step_loop import Executor, StepLoop
from kv_cache.block_pool import BlockPool
from protos.codec import WorkerEvent

WAIT_S = 20.0


class Clock:
    """Moved by the test; read by the loop's thread."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time


class Gate:
    """An executor that waits inside a step until the test lets it go on, or fail."""

    def __init__(self, inner: FakeExecutor) -> None:
        self._inner = inner
        self.entered = threading.Event()
        self.go_on = threading.Event()
        self.error: Exception | None = None

    def execute(self, step: StepInput, rows: list[SampleRow]) -> list[Sampled]:
        self.entered.set()
        assert self.go_on.wait(WAIT_S)
        if self.error is not None:
            raise self.error
        return self._inner.execute(step, rows)


class Harness:
    def __init__(
        self,
        executor: Executor | None = None,
        clock: Clock | None = None,
        on_token: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_token = on_token
        self.fake = FakeExecutor(32, 4)
        pool = BlockPool(32, 4)
        limits = Limits(100, 1000, 32, 4, 10)
        scheduler = DecodeScheduler(pool, DecodeLimits(8, 32, 8, 8, None))
        role = DecodeRole(
            pool,
            scheduler,
            MemoryTransfers(self.fake),
            self.fake,
            limits,
            compat_key="k",
            eos_token_ids=(),
        )
        self.events: list[WorkerEvent] = []
        self.failures: list[BaseException] = []
        self.failed = threading.Event()
        self.loop = StepLoop(
            role,
            executor or self.fake,
            block_size=4,
            eos_token_ids=(),
            clock=clock or Clock(),
            publish=self._publish,
            on_failure=self._on_failure,
        )

    def _publish(self, events: list[WorkerEvent]) -> None:
        self.events += events
        if any(isinstance(event, TokenEvent) for event in events):
            self._on_token()

    def _on_failure(self, error: BaseException) -> None:
        self.failures.append(error)
        self.failed.set()

    def wait_idle(self) -> None:
        idle = threading.Event()
        self.loop.when_idle(idle.set)
        assert idle.wait(WAIT_S)

    def tokens(self, transfer_id: str) -> list[int]:
        return [
            e.token_id
            for e in self.events
            if isinstance(e, TokenEvent) and e.transfer_id == transfer_id
        ]


def test_posted_attempts_run_to_their_ends_and_then_the_loop_is_idle() -> None:
    house = Harness()
    house.loop.start()
    for i in range(5):
        house.loop.post(Submit(attempt(f"a{i}", range(10 + i, 20 + i), max_tokens=6)))
    house.wait_idle()
    for i in range(5):
        assert house.tokens(f"a{i}") == reference_output(range(10 + i, 20 + i), 6, 7, 0)
    assert house.loop.load().last_step_age_s == 0.0
    assert house.loop.stop(WAIT_S)


def test_an_action_runs_between_steps_after_what_was_posted_before() -> None:
    house = Harness()
    seen: list[int] = []
    done = threading.Event()
    house.loop.post(Submit(attempt("a", range(4), max_tokens=1)))
    house.loop.call(lambda: seen.append(len(house.events)))
    house.loop.call(done.set)
    house.loop.start()
    assert done.wait(WAIT_S)
    assert seen == [0]
    assert house.loop.stop(WAIT_S)


def test_a_stuck_step_shows_as_age_and_a_finished_one_does_not() -> None:
    clock = Clock()
    gate = Gate(FakeExecutor(32, 4))
    house = Harness(gate, clock)
    house.loop.start()
    house.loop.post(Submit(attempt("a", range(4), max_tokens=1)))
    assert gate.entered.wait(WAIT_S)
    clock.time = 12.0
    assert house.loop.load().last_step_age_s == 12.0
    gate.go_on.set()
    house.wait_idle()
    assert house.loop.load().last_step_age_s == 0.0
    assert house.loop.stop(WAIT_S)


def test_what_escapes_a_step_ends_the_loop_and_is_told_once() -> None:
    gate = Gate(FakeExecutor(32, 4))
    gate.error = RuntimeError("the device is gone")
    gate.go_on.set()
    house = Harness(gate)
    house.loop.start()
    house.loop.post(Submit(attempt("a", range(4))))
    assert house.failed.wait(WAIT_S)
    assert [str(e) for e in house.failures] == ["the device is gone"]
    assert house.loop.stop(WAIT_S)


class NotANumber:
    """An executor whose model has no finite logits for one prompt."""

    def __init__(self, inner: FakeExecutor, bad_token: int) -> None:
        self._inner = inner
        self._bad_token = bad_token

    def execute(self, step: StepInput, rows: list[SampleRow]) -> list[Sampled]:
        last_tokens = step.token_ids[step.logits_rows].tolist()
        bad = [row for row, token in enumerate(last_tokens) if token == self._bad_token]
        if bad:
            raise NonFiniteLogitsError(tuple(bad))
        return self._inner.execute(step, rows)


def test_an_attempt_without_finite_logits_fails_alone() -> None:
    fake = FakeExecutor(32, 4)
    house = Harness(NotANumber(fake, bad_token=77))
    house.loop.post(Submit(attempt("bad", [5, 6, 77], max_tokens=4)))
    house.loop.post(Submit(attempt("good", range(10, 15), max_tokens=4)))
    house.loop.start()
    house.wait_idle()
    failures = [e for e in house.events if isinstance(e, AttemptFailed)]
    assert [(e.transfer_id, e.code) for e in failures] == [("bad", "non_finite_logits")]
    assert house.tokens("good") == reference_output(range(10, 15), 4, 7, 0)
    assert house.loop.stop(WAIT_S)


def test_stop_does_not_wait_for_ever_on_a_stuck_step() -> None:
    gate = Gate(FakeExecutor(32, 4))
    house = Harness(gate)
    house.loop.start()
    house.loop.post(Submit(attempt("a", range(4), max_tokens=1)))
    assert gate.entered.wait(WAIT_S)
    assert not house.loop.stop(0.0)
    gate.go_on.set()
    assert house.loop.stop(WAIT_S)


def test_a_cancel_behind_its_attempt_leaves_nothing_unfinished() -> None:
    house = Harness()
    house.loop.post(Submit(attempt("a", range(40), max_tokens=50)))
    house.loop.post(Cancel("a"))
    house.loop.start()
    house.wait_idle()
    assert house.loop.num_unfinished == 0
    assert house.tokens("a") == []
    assert house.loop.stop(WAIT_S)


def test_a_steps_tokens_are_told_while_the_next_step_computes() -> None:
    """The executor waits in its second step until the first one's token has been published."""
    fake = FakeExecutor(32, 4)
    told = threading.Event()

    class Waiting:
        def execute(self, step: StepInput, rows: list[SampleRow]) -> list[Sampled]:
            if fake.num_steps == 1:
                assert told.wait(WAIT_S)
            return fake.execute(step, rows)

    house = Harness(Waiting(), on_token=told.set)
    house.loop.post(Submit(attempt("a", range(4), max_tokens=3)))
    house.loop.start()
    house.wait_idle()
    assert house.tokens("a") == reference_output(range(4), 3, 7, 0)
    assert house.loop.stop(WAIT_S)


def test_what_escapes_while_telling_ends_the_loop() -> None:
    def lost() -> None:
        raise ConnectionError("nobody hears")

    house = Harness(on_token=lost)
    house.loop.start()
    house.loop.post(Submit(attempt("a", range(4), max_tokens=50)))
    assert house.failed.wait(WAIT_S)
    assert [str(e) for e in house.failures] == ["nobody hears"]
    assert house.loop.stop(WAIT_S)
