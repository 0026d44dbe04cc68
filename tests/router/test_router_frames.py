"""Events of a stream: what is encoded once says the same as what is encoded anew."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.http.format import TEXT, ChoiceFrames, TextFrames

HEAD = {"id": "cmpl-1", "object": "text_completion", "model": 'a "model"'}


def choice(index: int, text: str) -> dict[str, object]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": None}


@pytest.mark.parametrize("include_usage", [False, True])
@given(texts=st.lists(st.tuples(st.integers(0, 2), st.text(max_size=20)), max_size=6))
def test_events_of_text_alone_are_the_same_bytes(
    include_usage: bool, texts: list[tuple[int, str]]
) -> None:
    frames = ChoiceFrames(HEAD, include_usage=include_usage)
    text_frames = TextFrames(frames, lambda index: choice(index, TEXT))
    for index, text in texts:
        assert text_frames.frame(index, text) == frames.frame(choice(index, text))


def test_a_text_that_looks_like_the_place_of_a_text_is_only_a_text() -> None:
    frames = ChoiceFrames(HEAD, include_usage=False)
    event = TextFrames(frames, lambda index: choice(index, TEXT)).frame(0, TEXT)
    told = json.loads(event.removeprefix(b"data: "))
    assert told == {**HEAD, "choices": [choice(0, TEXT)]}
