"""Any text, calls or not, however cut, is read alike by every parser, and splits alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.message.thoughts import Thinking, ThoughtSplitter
from router.tools.call_event import CallArguments, CallParser, CallStart, Piece, joined
from router.tools.hermes import HermesParser
from router.tools.llama3 import Llama3Parser
from router.tools.mistral import MistralParser

PIECES = [
    *("<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "<think>"),
    *("</think>", "<", "[", "]", "{", "}", '"', ":", ",", ";", "\\", " ", "\n", "x", "7", "null"),
    *('"name"', '"arguments"', '"parameters"', '"f"', '{"name": "f", "arguments": {"a": [1]}}'),
    *('{"parameters": {}, "name": "f"}', '{"name": "g"}', '"{}"', "f{}", "text"),
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=14).map("".join)
PARSERS: list[Callable[[], CallParser]] = [
    HermesParser,
    lambda: Llama3Parser(frozenset({"f"})),
    MistralParser,
]


def run(parser: CallParser, pieces: Sequence[str], *, cut: bool) -> list[Piece]:
    found: list[Piece] = []
    for piece in pieces:
        found += parser.push(piece)
    return joined(found + parser.finish(cut=cut))


def cuts(text: str, at: Sequence[int]) -> list[str]:
    places = sorted({place % (len(text) + 1) for place in at} | {0, len(text)})
    return [text[a:b] for a, b in zip(places, places[1:], strict=False)]


@pytest.mark.parametrize("make", PARSERS, ids=["hermes", "llama3", "mistral"])
@given(text=TEXTS, at=st.lists(st.integers(0, 400), max_size=6), cut=st.booleans())
def test_a_parser_reads_any_text_alike_however_it_is_cut(
    make: Callable[[], CallParser], text: str, at: list[int], cut: bool
) -> None:
    whole = run(make(), [text], cut=cut)
    assert run(make(), cuts(text, at), cut=cut) == whole
    assert run(make(), list(text), cut=cut) == whole
    for before, after in zip(["", *whole], whole, strict=False):
        if isinstance(after, CallArguments):
            assert isinstance(before, CallStart), "arguments follow their call's beginning"


@pytest.mark.parametrize("state", list(Thinking))
@given(text=TEXTS, at=st.lists(st.integers(0, 400), max_size=6))
def test_thoughts_are_split_alike_however_the_text_is_cut(
    state: Thinking, text: str, at: list[int]
) -> None:
    def split(pieces: Sequence[str]) -> tuple[str, str]:
        splitter = ThoughtSplitter(state)
        parts = [*map(splitter.push, pieces), splitter.finish()]
        return "".join(p[0] for p in parts), "".join(p[1] for p in parts)

    whole = split([text])
    assert split(cuts(text, at)) == whole == split(list(text))
    assert "</think>" not in whole[0]
