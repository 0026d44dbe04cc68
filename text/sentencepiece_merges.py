"""Merge rules for SentencePiece's BPE, which stores scores instead of merges."""

from __future__ import annotations

from collections.abc import Sequence

_NORMAL, _USER_DEFINED, _UNUSED = 1, 4, 5


def merges_by_score(
    tokens: Sequence[str], scores: Sequence[float], types: Sequence[int]
) -> list[tuple[str, str]]:
    """Every way to put a piece together from two pieces, in the order SentencePiece would merge.

    It always merges the neighbours whose union scores best, so the union's score ranks the rule;
    several rules for one union rank by their parts, earlier pieces of the vocabulary first.
    """
    pieces = {
        token: i for i, token in enumerate(tokens) if types[i] in (_NORMAL, _USER_DEFINED, _UNUSED)
    }
    ranked: list[tuple[float, int, int, int]] = []
    for piece, i in pieces.items():
        for cut in range(1, len(piece)):
            left, right = pieces.get(piece[:cut]), pieces.get(piece[cut:])
            if left is not None and right is not None:
                ranked.append((-scores[i], i, left, right))
    ranked.sort()
    return [(tokens[left], tokens[right]) for _, _, left, right in ranked]
