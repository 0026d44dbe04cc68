"""The house: requests and waiting tokens, and what each class leaves to those above it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import OverloadedError, UnavailableError
from router.admission import Admission, Room, rooms
from state.tenants import PriorityClass

INTERACTIVE, STANDARD, BATCH = PriorityClass


def house(requests: int = 10, tokens: int = 1000, *, headroom: float = 0.2) -> Admission:
    return Admission(rooms(Room(requests, tokens), headroom=headroom))


def fill(admission: Admission, of: PriorityClass) -> int:
    count = 0
    try:
        while True:
            admission.enter(of)
            count += 1
    except OverloadedError as error:
        assert error.http_status == 429 and error.reason == "saturated"
    return count


def test_a_higher_class_comes_in_where_a_lower_one_is_turned_away() -> None:
    admission = house()
    assert fill(admission, BATCH) == 6
    assert fill(admission, STANDARD) == 2
    assert fill(admission, INTERACTIVE) == 2


def test_without_interactive_keys_the_standard_class_has_the_whole() -> None:
    admission = Admission(rooms(Room(10, 1000), headroom=0.2, has_interactive=False))
    assert fill(admission, STANDARD) == 10


def test_a_house_of_one_has_room_for_one_of_any_class() -> None:
    assert fill(house(1, headroom=0.4), BATCH) == 1


def test_waiting_tokens_are_bounded_by_class() -> None:
    admission = house()
    admission.wait(600, BATCH, retry_after_s=1.0)
    with pytest.raises(OverloadedError) as refused:
        admission.wait(1, BATCH, retry_after_s=7.0)
    assert refused.value.retry_after_s == 7.0
    admission.wait(200, STANDARD, retry_after_s=1.0)
    admission.wait(200, INTERACTIVE, retry_after_s=1.0)
    admission.served(600)
    admission.wait(100, BATCH, retry_after_s=1.0)


def test_a_prompt_that_nothing_waits_before_is_taken_however_long_it_is() -> None:
    admission = house()
    admission.wait(5000, BATCH, retry_after_s=1.0)
    with pytest.raises(OverloadedError):
        admission.wait(1, INTERACTIVE, retry_after_s=1.0)


def test_a_closing_house_says_so() -> None:
    admission = house()
    admission.draining = True
    with pytest.raises(UnavailableError, match="shutting down"):
        admission.enter()


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(list(PriorityClass)), st.integers(1, 300), st.booleans()),
        max_size=60,
    )
)
def test_the_limits_hold_whatever_comes_and_goes(
    moves: list[tuple[PriorityClass, int, bool]],
) -> None:
    admission = house(5, 800)
    inside: list[int] = []
    for of, tokens, leaves in moves:
        if leaves and inside:
            admission.served(inside.pop())
            admission.leave()
            continue
        try:
            admission.enter(of)
        except OverloadedError:
            continue
        try:
            admission.wait(tokens, of, retry_after_s=1.0)
            inside.append(tokens)
        except OverloadedError:
            admission.leave()
        assert admission.num_running == len(inside) <= 5
        assert admission.num_waiting_tokens == sum(inside) <= 800
