"""How patterns on normalised text are written: a blank stands for whatever separates words."""

from __future__ import annotations

import re
from collections.abc import Sequence

from router.guard.policy import AnchoredPattern

_LITERAL_REACH = 64
_WORD_LENGTH = 7
_WORDS = re.compile(r"\(\?:\[\\w'\]\+ \)\{\d+,(\d+)\}\?")
"""What `words` writes."""
_GAP = r"[\W_]{1,6}"


def phrase(pattern: str, anchors: str, *needed: str) -> AnchoredPattern:
    """A pattern whose blanks match any short run of blanks and punctuation, whole words only.

    Groups of strings are written with bars between them.
    """
    return AnchoredPattern(
        regex=re.compile(rf"\b(?:{pattern.replace(' ', _GAP)})"),
        anchors=tuple(anchors.split("|")),
        needed=tuple(tuple(group.split("|")) for group in needed),
        squeezed=re.compile(_squeezed(pattern)),
    )


def _squeezed(pattern: str) -> str:
    """The same for a text of nothing but letters and digits: some words are some characters there.

    Repeated words would be repeated repetitions, whose trials grow without bound.
    """
    some = _WORDS.sub(lambda m: rf"\w{{0,{_WORD_LENGTH * int(m[1])}}}?", pattern)
    return re.sub(r"[ ']", "", some.replace(r"\b", ""))


def literal(pattern: str, anchors: Sequence[str], *needed: Sequence[str]) -> AnchoredPattern:
    """A pattern that means what it says."""
    return AnchoredPattern(
        regex=re.compile(pattern),
        anchors=tuple(anchors),
        needed=tuple(map(tuple, needed)),
        reach=_LITERAL_REACH,
    )


def words(low: int, high: int) -> str:
    """Some words of any kind, each with the gap after it."""
    return rf"(?:[\w']+ ){{{low},{high}}}?"
