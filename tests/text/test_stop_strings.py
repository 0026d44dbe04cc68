"""Stop strings are found, and never partly shown, however the text is cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from text.stop_strings import StopMatcher

TEXT = st.text("abc", max_size=30)
STOPS = st.lists(st.text("abc", min_size=1, max_size=4), max_size=4)
CUTS = st.lists(st.integers(0, 30), max_size=8)


def stopped_by_definition(
    text: str, stops: list[str], include_stop: bool
) -> tuple[str, str | None]:
    """Look after every character whether a stop string has just become complete."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return text[: end if include_stop else end - len(longest)], longest
    return text, None


def run(matcher: StopMatcher, text: str, cuts: list[int]) -> tuple[list[str], bool]:
    edges = [0, *sorted(cut for cut in cuts if cut <= len(text)), len(text)]
    emitted, stopped = [], False
    for start, end in zip(edges, edges[1:], strict=False):
        piece, stopped = matcher.push(text[start:end])
        emitted.append(piece)
    return emitted, stopped


@given(text=TEXT, stops=STOPS, cuts=CUTS, include_stop=st.booleans())
def test_the_result_depends_on_the_text_alone(
    text: str, stops: list[str], cuts: list[int], include_stop: bool
) -> None:
    matcher = StopMatcher(stops, include_stop)
    emitted, stopped = run(matcher, text, cuts)
    expected, stop = stopped_by_definition(text, stops, include_stop)
    assert "".join(emitted) + matcher.flush() == expected
    assert stopped == (stop is not None)
    assert matcher.matched == stop


@given(text=TEXT, stops=STOPS, cuts=CUTS)
def test_no_more_is_held_back_than_may_begin_a_stop(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    matcher = StopMatcher(stops)
    _, stopped = run(matcher, text, cuts)
    held = matcher.flush()
    if stopped:
        assert held == ""
    elif held:
        assert any(stop.startswith(held) and stop != held for stop in stops)


def test_a_stop_across_pieces_is_held_back_and_then_withheld() -> None:
    matcher = StopMatcher(["\n\nUser:"])
    assert matcher.push("fine\n") == ("fine", False)
    assert matcher.push("\nUse") == ("", False)
    assert matcher.push("r: more") == ("", True)
    assert matcher.matched == "\n\nUser:"
    assert matcher.push("late") == ("", True)
    assert matcher.flush() == ""


def test_what_only_looked_like_a_stop_is_emitted() -> None:
    matcher = StopMatcher(["\n\nUser:"])
    assert matcher.push("a\n\nUs") == ("a", False)
    assert matcher.push("ed") == ("\n\nUsed", False)


def test_a_stop_can_be_included() -> None:
    matcher = StopMatcher(["END"], include_stop=True)
    assert matcher.push("the E") == ("the ", False)
    assert matcher.push("ND and on") == ("END", True)


def test_without_stops_everything_passes() -> None:
    matcher = StopMatcher([])
    assert matcher.push("anything") == ("anything", False)
    assert matcher.flush() == ""
