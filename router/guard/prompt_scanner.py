"""Looks for everything a policy's rules name, in one text.

original --fold--> normalised --Aho-Corasick--> terms, anchors, signs of disguise
                                 terms    -> findings
                                 anchors  -> expressions, around them only
                                 signs    -> the text again, read as the disguise says
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ahocorasick_rs import AhoCorasick

from router.guard import disguises
from router.guard.expressions import Expression, Neighbours
from router.guard.normalization import is_word, normalized
from router.guard.places import Place
from router.guard.policy import AnchoredPattern, Rule
from router.guard.verdict import Finding

_NEAR = 120
"""Characters around an anchor in which a difference makes it worth another look."""

Hit = tuple[int, int, int]
"""Number of a string, begin and end of it in the text."""


@dataclass(frozen=True, slots=True)
class Scan:
    """What was found in one text; places are those of its normal form."""

    findings: tuple[Finding, ...]
    disguised: tuple[Rule, ...]
    """Rules that match what the text says in disguise; there is no place to name."""


class PromptScanner:
    """Compiled rules. Immutable, so that any thread may use it."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._terms = [
            (term, rule)
            for rule in rules
            for text in rule.terms
            if (term := normalized(text).strip())
        ]
        self._everywhere: list[Expression] = []
        self._squeezed: list[Expression] = []
        self._neighbours: dict[tuple[int, tuple[str, ...]], Neighbours] = {}
        self._by_anchor: dict[str, list[Neighbours]] = {}
        for rule in rules:
            self._compile(rule)
        self._signs = disguises.signs() if any(rule.disguised for rule in rules) else {}
        self._strings = [t for t, _ in self._terms] + list(self._by_anchor) + list(self._signs)
        self._signs_from = len(self._strings) - len(self._signs)
        self._automaton = AhoCorasick(self._strings) if self._strings else None

    def scan(self, text: str) -> Scan:
        """All that the rules find in an original text."""
        folded = normalized(text)
        hits = self._hits(folded)
        return Scan(
            findings=tuple(self._findings(folded, hits)),
            disguised=tuple(self._disguised(text, folded, hits)) if self._signs else (),
        )

    def _compile(self, rule: Rule) -> None:
        for pattern in rule.patterns:
            expression = Expression(rule, pattern.regex, pattern.needed)
            if pattern.anchors:
                self._neighbours_at(pattern).expressions.append(expression)
            else:
                self._everywhere.append(expression)
            if pattern.squeezed is not None and rule.disguised:
                self._squeezed.append(Expression(rule, pattern.squeezed))

    def _neighbours_at(self, pattern: AnchoredPattern) -> Neighbours:
        key = pattern.reach, pattern.anchors
        if key not in self._neighbours:
            self._neighbours[key] = Neighbours(pattern.reach)
            for anchor in dict.fromkeys(pattern.anchors):
                self._by_anchor.setdefault(anchor, []).append(self._neighbours[key])
        return self._neighbours[key]

    def _hits(self, folded: str) -> list[Hit]:
        if self._automaton is None:
            return []
        return self._automaton.find_matches_as_indexes(folded, overlapping=True)

    def _findings(self, folded: str, hits: Iterable[Hit]) -> Iterator[Finding]:
        near: dict[Neighbours, list[Place]] = {}
        for number, begin, end in hits:
            if number < len(self._terms):
                rule = self._terms[number][1]
                if not rule.whole_words or _is_whole(folded, begin, end):
                    yield Finding(begin, end, rule)
            elif number < self._signs_from:
                for neighbours in self._by_anchor[self._strings[number]]:
                    near.setdefault(neighbours, []).append((begin, end))
        for neighbours, places in near.items():
            yield from neighbours.findings(folded, places)
        for expression in self._everywhere:
            yield from expression.findings(folded, 0, len(folded))

    def _disguised(self, text: str, folded: str, hits: Sequence[Hit]) -> Iterator[Rule]:
        signs = {self._signs[self._strings[n]] for n, _, _ in hits if n >= self._signs_from}
        findings: list[Finding] = []
        letters = disguises.deleeted(folded)
        if letters is not None:
            findings += self._findings(letters, self._changed(letters, folded))
        for view in _views(text, folded, signs):
            seen = normalized(view)
            findings += self._findings(seen, self._hits(seen))
        yield from (finding.rule for finding in findings if finding.rule.disguised)
        if disguises.APART in signs:
            squeezed = disguises.squeezed(folded)
            yield from (e.rule for e in self._squeezed if e.regex.search(squeezed))

    def _changed(self, letters: str, folded: str) -> Iterator[Hit]:
        """Hits near which a text is another than the one of equal length looked at before."""
        for hit in self._hits(letters):
            near = slice(max(0, hit[1] - _NEAR), hit[2] + _NEAR)
            if letters[near] != folded[near]:
                yield hit


def _views(text: str, folded: str, signs: set[str]) -> Iterator[str]:
    for name, read in disguises.WHOLE_TEXT.items():
        if name in signs:
            yield read(folded)
    yield from disguises.decoded(text)


def _is_whole(text: str, begin: int, end: int) -> bool:
    """Whether what lies there neither begins nor ends inside a word."""
    begins_inside = begin > 0 and is_word(text[begin]) and is_word(text[begin - 1])
    ends_inside = end < len(text) and is_word(text[end - 1]) and is_word(text[end])
    return not (begins_inside or ends_inside)
