"""Expressions that are tried only near some strings, and what they find there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from router.guard.places import Place, united
from router.guard.policy import Rule
from router.guard.verdict import Finding

WINDOW = 65_536
"""Characters that an expression is given at once: it lets no other thread run meanwhile."""
OVERLAP = 1_024
"""Of windows: no longer match is sure to be found."""


@dataclass(frozen=True, slots=True)
class Expression:
    """`needed`: a match holds one string of each of these groups."""

    rule: Rule
    regex: re.Pattern[str]
    needed: tuple[tuple[str, ...], ...] = ()

    def findings(self, folded: str, begin: int, end: int) -> Iterator[Finding]:
        for start in range(begin, max(begin + 1, end - OVERLAP), WINDOW - OVERLAP):
            for match in self.regex.finditer(folded, start, min(end, start + WINDOW)):
                yield Finding(match.start(), match.end(), self.rule)


class Neighbours:
    """Expressions with the same anchors, and so the same places to be tried at."""

    def __init__(self, reach: int) -> None:
        self.reach = reach
        self.expressions: list[Expression] = []

    def findings(self, folded: str, anchors: Iterable[Place]) -> Iterator[Finding]:
        """What is found around these places of anchors."""
        reach = self.reach
        for begin, end in united([(max(0, b - reach), e + reach) for b, e in anchors]):
            part = folded[begin:end]
            known: dict[tuple[str, ...], bool] = {}
            for expression in self.expressions:
                if _has_all(part, expression.needed, known):
                    yield from expression.findings(folded, begin, min(end, len(folded)))


def _has_all(
    part: str, groups: tuple[tuple[str, ...], ...], known: dict[tuple[str, ...], bool]
) -> bool:
    """Whether there is one string of each group in the text; `known` are groups looked for."""
    for group in groups:
        if group not in known:
            known[group] = any(string in part for string in group)
        if not known[group]:
            return False
    return True
