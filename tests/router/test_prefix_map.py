"""What the router remembers of its own decisions: prefixes, and work not yet reported."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.fleet.assignments import Assignment, Assignments
from router.fleet.prefix_map import PrefixMap


def chain(text: str) -> list[bytes]:
    """Every prefix stands for the hash of its last block."""
    return [text[: i + 1].encode() for i in range(len(text))]


def test_the_longest_common_prefix_is_found_for_each_worker() -> None:
    prefixes = PrefixMap(100)
    prefixes.record(chain("abcd"), "one")
    prefixes.record(chain("abx"), "two")
    assert prefixes.matches(chain("abcz")) == {"one": 3, "two": 2}
    assert prefixes.matches(chain("z")) == {}


def test_a_forgotten_beginning_ends_the_match() -> None:
    prefixes = PrefixMap(3)
    prefixes.record(chain("abc"), "one")
    prefixes.record(chain("xy"), "two")
    assert prefixes.matches(chain("abc")) == {"one": 1}, "tails are forgotten before heads"


def test_matching_does_not_count_as_use_but_recording_does() -> None:
    prefixes = PrefixMap(2)
    prefixes.record(chain("a"), "one")
    prefixes.record(chain("b"), "one")
    prefixes.record(chain("a"), "one")
    prefixes.record(chain("c"), "one")
    assert prefixes.matches(chain("a")) == {"one": 1}
    assert prefixes.matches(chain("b")) == {}


def test_no_more_is_kept_than_all_pools_hold() -> None:
    prefixes = PrefixMap(10)
    prefixes.record(chain("abcdef"), "one")
    prefixes.fit(4)
    assert len(prefixes) == 4
    assert prefixes.matches(chain("abcdef")) == {"one": 4}
    prefixes.record(chain("xy"), "two")
    assert len(prefixes) == 4
    prefixes.fit(1_000)
    prefixes.record(chain("abcdefghijklmno"), "one")
    assert len(prefixes) == 10


steps = st.lists(st.tuples(st.text("ab", max_size=6), st.sampled_from("PQR")), max_size=30)


@given(steps, st.text("ab", max_size=6), st.integers(1, 20))
def test_a_match_never_exceeds_what_was_recorded_and_the_map_is_bounded(
    recorded: list[tuple[str, str]], asked: str, max_blocks: int
) -> None:
    prefixes = PrefixMap(max_blocks)
    for text, epoch in recorded:
        prefixes.record(chain(text), epoch)
        assert len(prefixes) <= max_blocks
    for epoch, depth in prefixes.matches(chain(asked)).items():
        assert any(e == epoch and t.startswith(asked[:depth]) for t, e in recorded)


@given(steps, st.text("ab", max_size=6))
def test_an_unbounded_map_finds_exactly_the_longest_recorded_prefix(
    recorded: list[tuple[str, str]], asked: str
) -> None:
    prefixes = PrefixMap(10_000)
    for text, epoch in recorded:
        prefixes.record(chain(text), epoch)
    best = {
        epoch: max(
            depth
            for depth in range(len(asked) + 1)
            if any(e == epoch and t.startswith(asked[:depth]) for t, e in recorded)
        )
        for epoch in {e for _, e in recorded}
    }
    assert prefixes.matches(chain(asked)) == {e: n for e, n in best.items() if n}


ONE = Assignment(num_sequences=1, num_prefill_tokens=10, num_blocks=2)


def test_an_assignment_counts_until_the_second_report_after_it_was_sent() -> None:
    assignments = Assignments()
    assignments.reserve("t", ONE)
    for _ in range(5):
        assignments.reported()
    assert assignments.total() == ONE, "not sent yet, so no report can hold it"
    assignments.sent("t")
    assignments.reported()
    assert assignments.total() == ONE, "this report may have been on its way"
    assignments.reported()
    assert assignments.total() == Assignment(0, 0, 0)


def test_an_attempt_that_is_over_counts_no_longer() -> None:
    assignments = Assignments()
    assignments.reserve("t", ONE)
    assignments.reserve("u", ONE)
    assignments.remove("t")
    assignments.remove("t")
    assert assignments.total() == ONE
    assert assignments.num_routed == 2
