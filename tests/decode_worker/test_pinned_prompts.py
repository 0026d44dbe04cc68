"""Prompts that were asked to stay cached, on P and D with real schedulers and pools."""

from __future__ import annotations

import pytest
from fakes_engine import reference_output
from fakes_pair import Pair, attempt
from hypothesis import given, settings
from hypothesis import strategies as st

from core.request import Pinned, PinnedPrefix, PinWish

FOR_LONG = 1e5
BLOCK = 4


def prompt(length: int, start: int = 10) -> list[int]:
    return [start + (i * 7) % 900 for i in range(length)]


def wish(*num_tokens: int, ttl_s: float = FOR_LONG, limit: int | None = None) -> PinWish:
    return PinWish(tuple(PinnedPrefix(n, ttl_s) for n in num_tokens), "key", limit)


def ask(
    pair: Pair, name: str, tokens: list[int], pins: PinWish | None = None, *, combined: bool = False
) -> int:
    """Serves it whole; how many of its tokens were cached."""
    asked = attempt(name, tokens, max_tokens=3, pins=pins)
    pair.submit_to_decode(asked) if combined else pair.submit(asked)
    pair.run()
    assert pair.output[name, 0] == reference_output(tokens, 3, 7, 0)
    pair.check_whole()
    return pair.started[name].num_cached_tokens


def flood(pair: Pair, *, combined: bool = False) -> None:
    """Prompts that need every block that is not pinned."""
    for i in range(4):
        ask(pair, f"flood {pair.now}", prompt(40, start=200 + 50 * i), combined=combined)


@pytest.mark.parametrize("combined", [False, True])
def test_a_pinned_prompt_survives_what_evicts_others(combined: bool) -> None:
    pair = Pair(prefill_blocks=18, decode_blocks=18)
    ask(pair, "a", prompt(21), wish(21), combined=combined)
    ask(pair, "b", prompt(21, start=90), combined=combined)
    flood(pair, combined=combined)
    assert pair.pinned == {"a": Pinned("a", 20, 20 * FOR_LONG)}
    assert ask(pair, "again a", prompt(21), combined=combined) == 20
    assert ask(pair, "again b", prompt(21, start=90), combined=combined) == 0
    role = pair.decode if combined else pair.prefill
    assert role.load().pinned_blocks == {"key": 5} and role.load().num_pinned_blocks == 5
    other = pair.prefill if combined else pair.decode
    assert other.load().pinned_blocks == {}, "only who computes the prompt pins it"


def test_a_pin_ends_in_time_and_is_next_to_be_looked_at() -> None:
    pair = Pair(prefill_blocks=18)
    ask(pair, "a", prompt(21), wish(21, ttl_s=50.0))
    ends = pair.prefill.next_deadline()
    assert ends is not None and pair.now < ends <= pair.now + 50.0
    pair.now = ends
    assert pair.prefill.schedule(pair.now) is None
    assert pair.prefill.load().pinned_blocks == {} and pair.prefill.next_deadline() is None
    flood(pair)
    assert ask(pair, "again", prompt(21)) == 0
    assert pair.prefill.load().num_pins_dropped == 0


def test_each_use_that_marks_it_starts_its_time_anew() -> None:
    pair = Pair(prefill_blocks=18)
    ask(pair, "a", prompt(21), wish(21, ttl_s=500.0))
    first_end = pair.prefill.next_deadline()
    pair.now += 200.0
    assert ask(pair, "b", prompt(21), wish(21, ttl_s=500.0)) == 20
    assert first_end is not None
    pair.now = first_end + 1.0
    flood(pair)
    assert ask(pair, "c", prompt(21)) == 20
    assert 20 * 200.0 <= pair.pinned["b"].token_seconds < 20 * 500.0, "only what it gained"


def test_only_full_blocks_of_the_prompt_are_pinned_up_to_the_mark() -> None:
    pair = Pair()
    ask(pair, "short", prompt(10), wish(3))
    ask(pair, "middle", prompt(30), wish(17))
    ask(pair, "beyond", prompt(30), wish(99))
    assert [pair.pinned[n].num_tokens for n in ("short", "middle", "beyond")] == [0, 16, 28]


def test_of_two_prefixes_each_has_its_own_time() -> None:
    pair = Pair(prefill_blocks=18)
    pins = PinWish((PinnedPrefix(21, 20.0), PinnedPrefix(9, FOR_LONG)), "key")
    ask(pair, "a", prompt(21), pins)
    assert pair.pinned["a"] == Pinned("a", 20, 8 * FOR_LONG + 12 * 20.0)
    pair.now += 20.0
    flood(pair)
    assert ask(pair, "b", prompt(21)) == 8


def test_what_is_not_granted_is_served_all_the_same() -> None:
    pair = Pair(max_pinned=4)
    ask(pair, "too long", prompt(21), wish(21))
    ask(pair, "limited", prompt(13, start=90), wish(13, limit=11))
    ask(pair, "both", prompt(21, start=170), wish(9, 21))
    told = {name: pinned.num_tokens for name, pinned in pair.pinned.items()}
    assert told == {"too long": 0, "limited": 0, "both": 8}
    assert pair.pinned["too long"].token_seconds == 0.0


def test_without_a_cache_nothing_is_pinned() -> None:
    pair = Pair(caching=False)
    ask(pair, "a", prompt(21), wish(21))
    assert pair.pinned["a"].num_tokens == 0


def test_a_prompt_that_fails_pins_nothing() -> None:
    pair = Pair(chunk_tokens=4)
    pair.submit(attempt("a", prompt(21), pins=wish(21)))
    pair.prefill_step()
    pair.cancel("a")
    pair.run()
    assert pair.pinned == {} and pair.prefill.load().pinned_blocks == {}
    pair.check_whole()


def test_a_prompt_that_left_the_window_is_pinned_while_it_is_cached() -> None:
    pair = Pair(prefill_blocks=12, chunk_tokens=4, window=8)
    for name in ("a", "b"):
        pair.submit(attempt(name, prompt(40), pins=wish(40)))
        pair.run()
        pair.check_whole()
    assert pair.pinned == {"a": Pinned("a", 40, 40 * FOR_LONG), "b": pair.pinned["b"]}
    assert pair.started["b"].num_cached_tokens == 36
    pair.submit(attempt("c", prompt(40, start=300)))
    pair.run()
    assert not pair.failed and 0 < pair.prefill.load().num_pins_dropped < 10
    pair.check_whole()


@given(
    lengths=st.lists(st.integers(1, 44), min_size=2, max_size=8),
    marked=st.lists(st.booleans(), min_size=8, max_size=8),
    combined=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_pins_keep_nobody_from_being_served(
    lengths: list[int], marked: list[bool], combined: bool
) -> None:
    """All at once in pools that hold one of them at a time, with everything pinned that may be."""
    pair = Pair(prefill_blocks=13, decode_blocks=13)
    for i, length in enumerate(lengths):
        pins = wish(length) if marked[i] else None
        asked = attempt(str(i), prompt(length, start=50 * i), max_tokens=5, pins=pins)
        pair.submit_to_decode(asked) if combined else pair.submit(asked)
    pair.run()
    for i, length in enumerate(lengths):
        assert pair.output[str(i), 0] == reference_output(prompt(length, start=50 * i), 5, 7, 0)
    assert not pair.failed
    pair.check_whole()
