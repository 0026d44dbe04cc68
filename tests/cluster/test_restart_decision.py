"""When a failed process is started again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cluster.restart import (
    HEALTHY_AFTER_S,
    MAX_DELAY_S,
    GiveUp,
    History,
    Restart,
    after_failure,
)


def restart(history: History, *, ready_s: float = 0.0, max_restarts: int = -1) -> Restart:
    decision = after_failure(history, ready_s=ready_s, max_restarts=max_restarts)
    assert isinstance(decision, Restart)
    return decision


def test_the_first_failure_is_repaired_at_once() -> None:
    assert restart(History()).delay_s == 0.0


def test_failures_in_quick_succession_wait_longer_and_longer() -> None:
    history, delays = History(), []
    for _ in range(8):
        decision = restart(history, ready_s=1.0)
        history = decision.history
        delays.append(decision.delay_s)
    assert delays == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_a_long_healthy_life_is_forgiven() -> None:
    history = History(num_restarts=9, num_short_lives=9)
    assert restart(history, ready_s=HEALTHY_AFTER_S).delay_s == 0.0


def test_it_is_given_up_when_the_restarts_are_used_up() -> None:
    assert after_failure(History(num_restarts=2), ready_s=0.0, max_restarts=2) == GiveUp(2)
    assert after_failure(History(), ready_s=0.0, max_restarts=0) == GiveUp(0)
    assert isinstance(after_failure(History(1), ready_s=0.0, max_restarts=2), Restart)


@given(lives=st.lists(st.floats(0, 200), max_size=40), max_restarts=st.integers(-1, 10))
def test_the_limit_holds_and_no_delay_is_unbounded(lives: list[float], max_restarts: int) -> None:
    history, num_restarts = History(), 0
    for ready_s in lives:
        decision = after_failure(history, ready_s=ready_s, max_restarts=max_restarts)
        if isinstance(decision, GiveUp):
            break
        assert 0.0 <= decision.delay_s <= MAX_DELAY_S
        history, num_restarts = decision.history, num_restarts + 1
    assert max_restarts == -1 or num_restarts <= max_restarts
