"""Finds terms in text that comes in pieces, and says what may still become one.

text so far     ....certain....|open          open: where the earliest term that has begun, begins
next character                 |open c        -> it goes on, is complete, or was none

A term is complete when the character after it shows that it doesn't end inside a word. Places are
those of the original text; terms are compared in normal form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from router.guard.normalization import FOLDS, is_word
from router.guard.policy import Rule
from router.guard.term_book import TermBook, term_books
from router.guard.verdict import Finding


class Lexicon:
    """The terms of some rules, ready to be looked for."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.word_terms, self.free_terms = term_books(rules)

    def __bool__(self) -> bool:
        return bool(self.word_terms.terms or self.free_terms.terms)


@dataclass(slots=True)
class _Begun:
    """A place where some terms have begun: rows `low` to `high` of a book still may be there."""

    start: int
    book: TermBook
    low: int
    high: int
    text: str = ""
    end: int = 0
    complete: Rule | None = None
    """Of the term that ends at `end`, unless a word goes on there."""


class TermStream:
    """One text. The same findings however it is cut."""

    def __init__(self, lexicon: Lexicon) -> None:
        self._lexicon = lexicon
        self._begun: list[_Begun] = []
        self._last = " "
        self._position = 0

    @property
    def open(self) -> int:
        """Before this place nothing more will be found: the end of the text, if nothing is open."""
        return self._begun[0].start if self._begun else self._position

    @property
    def position(self) -> int:
        """Characters so far."""
        return self._position

    @property
    def begun(self) -> bool:
        """Whether something may come of the text's end."""
        return bool(self._begun)

    def copy(self) -> TermStream:
        """The same text, to go on with otherwise."""
        other = TermStream(self._lexicon)
        other._begun = [replace(begun) for begun in self._begun]
        other._last, other._position = self._last, self._position
        return other

    def push(self, text: str) -> list[Finding]:
        """Findings that this piece completes, by their ends."""
        found: list[Finding] = []
        for character in text:
            for folded in FOLDS[ord(character)]:
                if not (folded == " " and self._last == " "):
                    self._step(folded, found)
            self._position += 1
        return found

    def finish(self) -> list[Finding]:
        """What is complete because the text ends."""
        found = [Finding(b.start, b.end, b.complete) for b in self._begun if b.complete]
        self._begun.clear()
        return found

    def _step(self, character: str, found: list[Finding]) -> None:
        in_word = is_word(character)
        if self._begun:
            self._continue(character, in_word, found)
        free, bound = self._lexicon.free_terms, self._lexicon.word_terms
        if character in free.first_characters:
            self._begin(free, character, found)
        if character in bound.first_characters and not (in_word and is_word(self._last)):
            self._begin(bound, character, found)
        self._last = character

    def _continue(self, character: str, in_word: bool, found: list[Finding]) -> None:
        before, self._begun = self._begun, []
        for begun in before:
            if begun.complete is not None and not in_word:
                found.append(Finding(begun.start, begun.end, begun.complete))
            begun.complete = None
            self._extend(begun, character, found)

    def _begin(self, book: TermBook, character: str, found: list[Finding]) -> None:
        begun = _Begun(self._position, book, 0, len(book.terms))
        self._extend(begun, character, found)

    def _extend(self, begun: _Begun, character: str, found: list[Finding]) -> None:
        """Keeps it as long as something may come of it."""
        book = begun.book
        begun.text += character
        begun.low, begun.high = book.narrowed(begun.text, begun.low, begun.high)
        if begun.low == begun.high:
            return
        if book.terms[begun.low] == begun.text:
            rule = book.rules[begun.low]
            begun.end = self._position + 1
            begun.low += 1
            if rule.whole_words and is_word(character):
                begun.complete = rule
            else:
                found.append(Finding(begun.start, begun.end, rule))
        if begun.low < begun.high or begun.complete is not None:
            self._begun.append(begun)
