"""Choices move between decode workers with their KV, every interleaving decided by the test."""

from __future__ import annotations

import pytest
from fakes_engine import reference_output
from fakes_movers import Movers
from fakes_pair import attempt
from hypothesis import given, settings
from hypothesis import strategies as st

from core.request import Attempt


def prompt(length: int, start: int = 10) -> list[int]:
    return [start + (i * 7) % 900 for i in range(length)]


def request(
    name: str, length: int = 10, *, max_tokens: int = 12, choices: int = 1, start: int = 10
) -> Attempt:
    chosen = tuple(range(choices))
    return attempt(name, prompt(length, start), max_tokens=max_tokens, choices=chosen)


def expected(length: int, max_tokens: int = 12, choice: int = 0, start: int = 10) -> list[int]:
    return reference_output(prompt(length, start), max_tokens, 7, choice)


@pytest.mark.parametrize("length", [1, 3, 4, 5, 7, 8])
@pytest.mark.parametrize("after", range(2, 7))
def test_a_choice_that_moves_goes_on_with_its_kv(length: int, after: int) -> None:
    movers = Movers()
    movers.submit(request("a", length))
    for _ in range(after):
        movers.turn()
    movers.move_all_from("d0")
    movers.run()
    assert movers.output("a") == expected(length)
    assert [moved.handoff is not None for moved in movers.moved] == [True]
    assert movers.workers["d0"].num_prefilled == length
    assert movers.workers["d1"].num_prefilled == 0, "its KV was pulled, not computed"
    movers.check_whole()


def test_all_choices_of_a_request_move_each_with_its_own_kv() -> None:
    movers = Movers()
    movers.submit(request("a", 10, choices=3))
    for _ in range(4):
        movers.turn()
    movers.move_all_from("d0")
    movers.run()
    for choice in range(3):
        assert movers.output("a", choice) == expected(10, choice=choice)
    assert sorted(m.choices for m in movers.moved) == [(0,), (1,), (2,)]
    assert movers.workers["d1"].num_prefilled == 0
    movers.check_whole()


def test_a_choice_moves_again_and_again() -> None:
    movers = Movers(3)
    movers.submit(request("a", 9, max_tokens=30))
    for turn in range(40):
        movers.turn()
        if turn % 5 == 4:
            for worker in movers.workers:
                movers.move_all_from(worker)
    movers.run()
    assert movers.output("a") == expected(9, 30)
    assert sum(moved.handoff is not None for moved in movers.moved) >= 3
    assert sum(w.num_prefilled for w in movers.workers.values()) >= 9
    movers.check_whole()


def test_what_ends_in_the_next_step_does_not_move() -> None:
    movers = Movers()
    movers.submit(request("a", 5, max_tokens=4))
    for _ in range(3):
        movers.turn()
    assert not movers.is_over("a")
    movers.move_all_from("d0")
    movers.turn()
    assert movers.is_over("a") and not movers.moved
    movers.run()
    assert movers.output("a") == expected(5, 4)
    movers.check_whole()


def test_a_prompt_that_is_still_being_computed_is_handed_back() -> None:
    movers = Movers()
    movers.submit(request("a", 30))
    movers.turn()
    movers.move_all_from("d0")
    movers.run()
    assert [(moved.choices, moved.handoff) for moved in movers.moved] == [((0,), None)]
    assert movers.output("a") == expected(30)
    movers.check_whole()


def test_waiting_choices_are_handed_back_and_running_ones_move() -> None:
    movers = Movers(max_num_seqs=2)
    movers.submit(request("a", 6, choices=4))
    movers.submit(request("b", 5, start=50))
    for _ in range(3):
        movers.turn()
    movers.move_all_from("d0")
    movers.run()
    for choice in range(4):
        assert movers.output("a", choice) == expected(6, choice=choice)
    assert movers.output("b") == expected(5, start=50)
    assert {moved.handoff is None for moved in movers.moved} == {True, False}
    movers.check_whole()


def test_a_choice_being_imported_is_handed_back() -> None:
    movers = Movers(3)
    movers.submit(request("a", 10))
    for _ in range(3):
        movers.turn()
    movers.move_all_from("d0")
    movers.turn()  # offered, and taken over by d1, which opens its pull
    assert movers.pulled_by, "the pull is open"
    movers.move_all_from("d1")
    movers.run()
    assert movers.output("a") == expected(10)
    assert [moved.handoff is None for moved in movers.moved] == [False, True]
    movers.check_whole()


def test_a_broken_link_costs_a_computation_and_no_token() -> None:
    movers = Movers()
    movers.submit(request("a", 10))
    for _ in range(3):
        movers.turn()
    movers.move_all_from("d0")
    movers.turn(kv_moves=False)
    movers.break_links()
    movers.run()
    assert movers.output("a") == expected(10)
    assert movers.num_failed == 1
    movers.check_whole()


def test_leases_that_nobody_pulls_expire() -> None:
    movers = Movers()
    movers.submit(request("a", 10))
    for _ in range(3):
        movers.turn()
    movers.move_all_from("d0")
    movers.turn(kv_moves=False)
    movers.expire_leases()
    movers.run()
    assert movers.output("a") == expected(10), "computed anew where it was to be pulled"
    movers.check_whole()


def test_a_cancel_ends_the_lease_of_what_has_moved() -> None:
    movers = Movers()
    movers.submit(request("a", 10, choices=2))
    for _ in range(3):
        movers.turn()
    movers.move_all_from("d0")
    movers.turn(kv_moves=False)
    assert movers.workers["d0"].role.load().kv_blocks["leased"] > 0
    movers.cancel("a")
    movers.run()
    movers.check_whole()


def test_a_sliding_window_moves_only_what_is_still_seen() -> None:
    movers = Movers(window=10)
    movers.submit(request("a", 40, max_tokens=30))
    for _ in range(16):
        movers.turn()
    movers.move_all_from("d0")
    movers.run()
    (moved,) = movers.moved
    assert moved.handoff is not None and moved.handoff.first_block > 0
    assert len(movers.output("a")) == 30
    assert movers.workers["d1"].num_prefilled == 0
    movers.check_whole()


@st.composite
def requests(draw: st.DrawFn) -> list[dict[str, int]]:
    return draw(
        st.lists(
            st.fixed_dictionaries(
                {
                    "length": st.integers(1, 30),
                    "shared": st.integers(0, 1),
                    "max_tokens": st.integers(1, 25),
                    "choices": st.integers(1, 3),
                    "cancel_at": st.integers(0, 80),
                    "at": st.integers(0, 15),
                    "worker": st.integers(0, 2),
                }
            ),
            min_size=1,
            max_size=6,
        )
    )


@settings(max_examples=60, deadline=None)
@given(
    requests(),
    st.sampled_from([24, 64]),
    st.integers(1, 8),
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 2)), max_size=6),
    st.lists(st.integers(0, 40), max_size=2),
)
def test_any_moves_give_undisturbed_answers_and_leak_nothing(
    mix: list[dict[str, int]],
    num_blocks: int,
    max_num_seqs: int,
    moves: list[tuple[int, int]],
    breaks: list[int],
) -> None:
    movers = Movers(3, num_blocks=num_blocks, max_num_seqs=max_num_seqs, growth_tokens=2)
    for turn in range(60):
        for i, r in enumerate(mix):
            name, start = f"r{i}", 10 if r["shared"] else 11 + i
            if r["at"] == turn:
                made = request(
                    name,
                    r["length"],
                    max_tokens=r["max_tokens"],
                    choices=r["choices"],
                    start=start,
                )
                movers.submit(made, f"d{r['worker']}")
            if r["at"] < r["cancel_at"] == turn:
                movers.cancel(name)
        for at, worker in moves:
            if at == turn:
                movers.move_all_from(f"d{worker}")
        if turn in breaks:
            movers.break_links()
        movers.turn()
    movers.run()
    for i, r in enumerate(mix):
        start = 10 if r["shared"] else 11 + i
        for choice in range(r["choices"]):
            got = movers.output(f"r{i}", choice)
            want = expected(r["length"], r["max_tokens"], choice, start)
            assert got == want[: len(got)]
            assert got == want or r["at"] < r["cancel_at"] < 60
    movers.check_whole()
