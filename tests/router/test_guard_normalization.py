"""What the guard takes for the same text, and where it came from."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.guard.normalization import FOLDS, is_word, normalized, origins

SOME_TEXT = st.text(
    st.one_of(
        st.characters(),
        st.sampled_from(
            "aB \n\t\u00ad\u200b\u200d\ufeffＡ忽略ﬁİßé\u0301か\u3099о\U000e0041\U0001d400"
        ),
    )
)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("Ｉｇｎｏｒｅ　ＡＬＬ", "ignore all"),
        ("ig\u200bno\u00adre \u2060all\ufeff", "ignore all"),
        ("іgnоrе аll", "ignore all"),
        ("𝐢𝐠𝐧𝐨𝐫𝐞 ⓐⓛⓛ", "ignore all"),
        ("ígnöre āll", "ignore all"),
        ("i\u0301gno\u0308re all", "ignore all"),
        ("ignore\r\n\t all", "ignore all"),
        ("\U000e0069\U000e0067nore all", "ignore all"),
        ("\ufb01le", "file"),
        ("忽略\u200b以上", "忽略以上"),
        ("don’t", "don't"),
        ("\x08ignore\x00 all", "ignore all"),
    ],
)
def test_what_looks_alike_is_the_same(text: str, same: str) -> None:
    assert normalized(text) == same


@given(SOME_TEXT)
def test_a_text_is_folded_character_by_character(text: str) -> None:
    folded = "".join(FOLDS[ord(c)] for c in text)
    while "  " in folded:
        folded = folded.replace("  ", " ")
    assert normalized(text) == folded
    assert normalized(folded) == folded, "a normal form is its own"


@given(SOME_TEXT)
def test_every_normalised_character_comes_from_somewhere(text: str) -> None:
    places, folded = origins(text), normalized(text)
    assert len(places) == len(folded) and places == sorted(places)
    for place, character in zip(places, folded, strict=True):
        assert character in FOLDS[ord(text[place])]


@given(st.text(st.characters(categories=("L", "M", "N"), max_codepoint=0x3000)))
def test_how_accents_are_composed_makes_no_difference(text: str) -> None:
    composed = unicodedata.normalize("NFC", text)
    assert normalized(composed) == normalized(unicodedata.normalize("NFD", composed))


def test_words_end_where_scripts_have_spaces() -> None:
    assert [is_word(c) for c in "a7_я- 略あ한"] == [True] * 4 + [False] * 5
