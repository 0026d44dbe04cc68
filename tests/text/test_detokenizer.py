"""Incremental detokenising equals decoding everything at once, however the ids arrive."""

from __future__ import annotations

import pytest
from fakes_tokenizer_files import save_sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from text.detokenizer import Detokenizer
from text.tokenizer import Tokenizer, load_tokenizer

IDS = st.lists(st.integers(0, 49300), max_size=40)
CUTS = st.lists(st.integers(0, 40), max_size=8)


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(save_sentencepiece(tmp_path_factory.mktemp("tokenizer"), prefix=True))


def pieces_of(detokenizer: Detokenizer, ids: list[int], cuts: list[int]) -> list[str]:
    edges = [0, *sorted(cut for cut in cuts if cut <= len(ids)), len(ids)]
    pieces = [
        detokenizer.push(ids[start:end]) for start, end in zip(edges, edges[1:], strict=False)
    ]
    return [*pieces, detokenizer.flush()]


@settings(max_examples=300, deadline=None)
@given(ids=IDS, cuts=CUTS, skip=st.booleans())
def test_pieces_of_arbitrary_ids_add_up_to_the_full_decode(
    default_tokenizer: Tokenizer, ids: list[int], cuts: list[int], skip: bool
) -> None:
    pieces = pieces_of(Detokenizer(default_tokenizer, skip), ids, cuts)
    assert "".join(pieces) == default_tokenizer.decode(ids, skip_special_tokens=skip)


@settings(max_examples=300, deadline=None)
@given(ids=st.lists(st.integers(0, 270), max_size=40), cuts=CUTS, skip=st.booleans())
def test_the_same_holds_for_byte_tokens_and_leading_spaces(
    sentencepiece: Tokenizer, ids: list[int], cuts: list[int], skip: bool
) -> None:
    pieces = pieces_of(Detokenizer(sentencepiece, skip), ids, cuts)
    assert "".join(pieces) == sentencepiece.decode(ids, skip_special_tokens=skip)


@settings(max_examples=200, deadline=None)
@given(
    text=st.text(
        st.characters(min_codepoint=0x80, max_codepoint=0x3FFFF, exclude_categories=["Cs"]),
        max_size=12,
    )
)
def test_valid_text_comes_in_whole_characters_only(default_tokenizer: Tokenizer, text: str) -> None:
    detokenizer = Detokenizer(default_tokenizer)
    so_far = ""
    for token in default_tokenizer.encode(text):
        so_far += detokenizer.push([token])
        assert text.startswith(so_far)
    assert so_far + detokenizer.flush() == text


def test_text_is_emitted_as_soon_as_it_is_certain(default_tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(default_tokenizer)
    for token in default_tokenizer.encode("Hello wonderful world"):
        assert detokenizer.push([token]) == default_tokenizer.token_text(token)
    assert detokenizer.flush() == ""


def test_a_character_that_never_ends_appears_at_the_flush(default_tokenizer: Tokenizer) -> None:
    first, *_ = (i for i in range(49152) if default_tokenizer.token_bytes(i) == b"\xf0")
    detokenizer = Detokenizer(default_tokenizer)
    assert detokenizer.push([first]) == ""
    assert detokenizer.push(default_tokenizer.encode("a")) == "\ufffda"
    assert detokenizer.push([first]) == ""
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.flush() == ""


def test_special_tokens_inside_a_character_do_not_break_it(default_tokenizer: Tokenizer) -> None:
    ids = [i for i in default_tokenizer.encode("\U0010fffd")]
    assert len(ids) > 1
    detokenizer = Detokenizer(default_tokenizer)
    assert detokenizer.push([ids[0], 2, *ids[1:]]) == "\U0010fffd"


def test_a_continuation_keeps_its_leading_space(sentencepiece: Tokenizer) -> None:
    ids = sentencepiece.encode("hi", add_special_tokens=False)
    assert Detokenizer(sentencepiece).push(ids) == "hi"
    assert Detokenizer(sentencepiece, after_text=True).push(ids) == " hi"


def test_the_work_of_a_token_does_not_grow_with_the_text(default_tokenizer: Tokenizer) -> None:
    asked: list[int] = []

    class Counting(Tokenizer):
        def token_bytes(self, token_id: int) -> bytes:
            asked.append(token_id)
            return default_tokenizer.token_bytes(token_id)

    counting = Counting.__new__(Counting)
    counting.__dict__.update(default_tokenizer.__dict__)
    detokenizer = Detokenizer(counting)
    ids = default_tokenizer.encode("one token after the other " * 50)
    for token in ids:
        detokenizer.push([token])
    assert asked == ids
