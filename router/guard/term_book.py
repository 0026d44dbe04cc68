"""The forbidden terms of a policy, sorted, so that all that begin alike lie side by side."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from router.guard.normalization import is_word, normalized
from router.guard.policy import Rule

_LAST = "\U0010ffff"
"""After every character that a normalised text can hold."""


class TermBook:
    """Distinct normalised terms in order; rows of it are ranges `[low, high)`. Immutable."""

    def __init__(self, terms: dict[str, Rule]) -> None:
        self.terms = sorted(terms)
        self.rules = [terms[term] for term in self.terms]
        self.first_characters = frozenset(term[0] for term in self.terms)

    def narrowed(self, prefix: str, low: int, high: int) -> tuple[int, int]:
        """Rows of `[low, high)` that begin with `prefix`."""
        low = bisect_left(self.terms, prefix, low, high)
        return low, bisect_left(self.terms, prefix + _LAST, low, high)


def term_books(rules: Sequence[Rule]) -> tuple[TermBook, TermBook]:
    """Terms that don't match after a word's character, and terms that match anywhere.

    Of equal terms of several rules the first rule has it.
    """
    after_words: dict[str, Rule] = {}
    anywhere: dict[str, Rule] = {}
    for rule in rules:
        for text in rule.terms:
            term = normalized(text).strip()
            if term and term not in after_words and term not in anywhere:
                bound = rule.whole_words and is_word(term[0])
                (after_words if bound else anywhere)[term] = rule
    return TermBook(after_words), TermBook(anywhere)
