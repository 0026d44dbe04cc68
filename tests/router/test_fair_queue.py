"""Who is next in the line, and how long that takes: pure, against simulated workers."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import DeadlineError, OverloadedError
from core.load import LoadReport
from core.request import Phase
from router.fleet.policy import WorkerView
from router.line.early import too_late
from router.line.fair_queue import OUTPUT_WEIGHT, FairQueue, Ticket
from router.line.gate import GateSettings, InFlight, is_open
from router.line.ttft_model import MIN_OBSERVATIONS, NUM_COLD, TtftModel
from state.tenants import PriorityClass

INTERACTIVE, STANDARD, BATCH = PriorityClass
SETTINGS = GateSettings(ahead_tokens=1000, max_num_waiting=8, combined=False)


def ticket(
    tenant: str = "a", tokens: int = 10, of: PriorityClass = STANDARD, priority: int = 0
) -> Ticket:
    return Ticket(of, tenant, tokens, priority)


def take(queue: FairQueue) -> Ticket | None:
    """The next one, served as the line serves it."""
    head = queue.head()
    if head is not None:
        queue.remove(head)
        queue.served(head, prompt_tokens=head.num_tokens)
    return head


def test_classes_go_strictly_one_before_the_other() -> None:
    queue = FairQueue()
    for each in (BATCH, STANDARD, INTERACTIVE):
        queue.push(ticket(of=each))
    taken = [take(queue) for _ in range(4)]
    assert [t and t.priority_class for t in taken] == [INTERACTIVE, STANDARD, BATCH, None]


def test_a_tenants_own_requests_go_by_priority_and_then_by_arrival() -> None:
    queue = FairQueue()
    tickets = [ticket(priority=p) for p in (0, 5, -5, 0)]
    for each in tickets:
        queue.push(each)
    order = [take(queue) for _ in tickets]
    assert order == [tickets[2], tickets[0], tickets[3], tickets[1]]


def test_whoever_leaves_the_line_is_never_next() -> None:
    queue = FairQueue()
    first, second = ticket(), ticket()
    queue.push(first)
    queue.push(second)
    queue.remove(first)
    queue.remove(first)
    assert take(queue) is second and len(queue) == 0


@settings(deadline=None)
@given(
    flood=st.integers(5, 60),
    sizes=st.lists(st.integers(1, 500), min_size=20, max_size=40),
    outputs=st.lists(st.integers(0, 300), min_size=1, max_size=10),
)
def test_a_tenant_that_floods_gets_no_more_than_its_turn(
    flood: int, sizes: list[int], outputs: list[int]
) -> None:
    """Two tenants who always have something waiting: what they were served differs by no more than
    the largest request and the largest answer (the paper's bound, with one request at a time)."""
    queue = FairQueue()
    for i in range(flood):
        queue.push(ticket("flooder", sizes[i % len(sizes)]))
    served: Counter[str] = Counter()
    most = max(sizes) + OUTPUT_WEIGHT * max(outputs)
    for i, size in enumerate(sizes):
        queue.push(ticket("quiet", size))
        queue.push(ticket("flooder", size))
        head = take(queue)
        assert head is not None
        output = outputs[i % len(outputs)]
        queue.served(head, output_tokens=output)
        served[head.tenant] += int(head.num_tokens + OUTPUT_WEIGHT * output)
        assert abs(served["flooder"] - served["quiet"]) <= most


def test_being_idle_saves_nothing_up() -> None:
    queue = FairQueue()
    for _ in range(50):
        queue.push(ticket("busy", 100))
        take(queue)
    for _ in range(6):
        queue.push(ticket("busy", 100))
        queue.push(ticket("idle", 100))
    order = [t.tenant for _ in range(6) if (t := take(queue))]
    assert Counter(order) == {"busy": 3, "idle": 3}


def test_what_was_served_is_forgotten_of_tenants_that_owe_nothing() -> None:
    queue = FairQueue()
    for i in range(1000):
        queue.push(ticket(f"tenant-{i}", 1))
        take(queue)
    counters = next(c.counters for c in queue._classes.values() if c.counters)
    assert len(counters) < 200


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 100)), max_size=20))
def test_the_tokens_ahead_are_about_those_that_are_really_sent_before(
    waiting: list[tuple[str, int]],
) -> None:
    """Never more than all that waits, and off by no more than a request for each tenant."""
    queue = FairQueue()
    for tenant, tokens in waiting:
        queue.push(ticket(tenant, tokens))
    mine = ticket("d", 50)
    predicted = queue.tokens_ahead(mine)
    queue.push(mine)
    before = 0
    while (head := take(queue)) is not mine and head is not None:
        before += head.num_tokens
    assert predicted <= sum(tokens for _, tokens in waiting)
    assert abs(predicted - before) <= 4 * 100


# ---- the gate


def view(role: Phase, *, waiting: int = 0, draining: bool = False) -> WorkerView:
    load = LoadReport(num_waiting=waiting)
    return WorkerView(role.value, role.value, role, "key", 16, load, draining)


P, D = view(Phase.PREFILL), view(Phase.DECODE)


def test_workers_get_what_keeps_them_busy_and_no_more() -> None:
    assert is_open([P, D], InFlight(0, 0, 0), STANDARD, SETTINGS)
    assert is_open([P, D], InFlight(9, 999, 9), STANDARD, SETTINGS)
    assert not is_open([P, D], InFlight(9, 1000, 9), STANDARD, SETTINGS)
    assert is_open([P, P, D], InFlight(9, 1000, 9), STANDARD, SETTINGS)
    assert is_open([P, D], InFlight(1, 50_000, 9), STANDARD, SETTINGS), "the next long one is there"


def test_batches_fill_half_of_what_online_requests_may() -> None:
    assert not is_open([P, D], InFlight(9, 500, 9), BATCH, SETTINGS)
    assert is_open([P, D], InFlight(9, 499, 9), BATCH, SETTINGS)


def test_crowded_decode_workers_close_the_gate_unless_none_of_it_is_ours() -> None:
    crowded = view(Phase.DECODE, waiting=8)
    assert not is_open([P, crowded], InFlight(0, 0, 5), STANDARD, SETTINGS)
    assert is_open([P, crowded], InFlight(0, 0, 0), STANDARD, SETTINGS)
    assert is_open([P, crowded, D], InFlight(0, 0, 5), STANDARD, SETTINGS)


def test_without_workers_requests_wait_where_that_is_bounded() -> None:
    assert is_open([], InFlight(99, 9999, 99), STANDARD, SETTINGS)
    assert is_open([view(Phase.PREFILL, draining=True)], InFlight(99, 9999, 99), BATCH, SETTINGS)


# ---- predictions


@dataclass
class SimulatedPool:
    """Workers that compute prompts one after the other, at one rate and with one overhead."""

    num_workers: int
    tokens_per_s: float
    overhead_s: float
    free_at: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.free_at = [0.0] * self.num_workers

    def first_token_at(self, now: float, tokens: int) -> float:
        worker = min(range(self.num_workers), key=lambda w: self.free_at[w])
        start = max(now, self.free_at[worker])
        self.free_at[worker] = start + self.overhead_s + tokens / self.tokens_per_s
        return self.free_at[worker]

    def tokens_before(self, now: float) -> float:
        return sum(max(0.0, at - now) for at in self.free_at) * self.tokens_per_s


@settings(deadline=None)
@given(
    workers=st.integers(1, 4),
    rate=st.floats(200, 50_000),
    load=st.floats(0.2, 2.0),
    seed=st.integers(0, 1000),
)
def test_predictions_follow_simulated_queues(
    workers: int, rate: float, load: float, seed: int
) -> None:
    rng, pool, model = random.Random(seed), SimulatedPool(workers, rate, 0.005), TtftModel()
    now, errors, scale = 0.0, [], 0.0
    for i in range(200):
        tokens = rng.randrange(20, 4000)
        now += rng.expovariate(load * workers * rate / 2000)
        work = pool.tokens_before(now) / workers + tokens
        actual = pool.first_token_at(now, tokens) - now
        predicted = model.predict(work)
        if i >= 50 and predicted is not None:
            errors.append(abs(predicted - actual))
            scale = max(scale, actual)
        model.observe(work, actual)
    errors.sort()
    # Which worker is free first differs from the mean by up to a prompt's length.
    assert errors[len(errors) // 2] <= 0.2 * scale + 4000 / rate


def test_who_has_seen_little_turns_nobody_away() -> None:
    model = TtftModel()
    for i in range(MIN_OBSERVATIONS - 1):
        model.observe(100, 9.0 if i < NUM_COLD else 0.02)
    assert model.predict(1e9) is None and model.tokens_per_second is None
    for _ in range(50):
        model.observe(100, 0.02)
    short = model.predict(100_000)
    assert short is not None and short < 1.0, "short prompts say nothing about long ones"


def test_a_rate_that_changes_is_soon_the_one_that_counts() -> None:
    model, rng = TtftModel(), random.Random(1)
    for rate in (10_000.0, 1000.0):
        for _ in range(150):
            work = rng.randrange(10, 5000)
            model.observe(work, work / rate)
    predicted = model.predict(2000)
    assert predicted is not None and abs(predicted - 2.0) < 0.2


def test_whoever_would_come_too_late_is_told_when_to_come_back() -> None:
    assert too_late(predicted_s=None, alone_s=None, left_s=0.1) is None
    assert too_late(predicted_s=2.0, alone_s=0.5, left_s=2.0) is None
    busy = too_late(predicted_s=8.0, alone_s=0.5, left_s=2.0)
    assert isinstance(busy, OverloadedError)
    assert (busy.http_status, busy.retry_after_s, busy.reason) == (429, 6.0, "deadline")
    assert isinstance(too_late(predicted_s=8.0, alone_s=3.0, left_s=2.0), DeadlineError)
