"""From all that was found in one text to what is done about it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from router.guard.policy import Action, Rule


@dataclass(frozen=True, slots=True)
class Finding:
    """Where a rule matched: characters `start` to `end` of a text."""

    start: int
    end: int
    rule: Rule

    @property
    def order(self) -> tuple[int, int]:
        """From left to right, the longer one first."""
        return self.start, -self.end


@dataclass(frozen=True, slots=True)
class Redaction:
    """Characters `start` to `end` of a text, to be replaced."""

    start: int
    end: int
    replacement: str


def heeded(findings: Iterable[Finding], allowed: Sequence[Finding]) -> list[Finding]:
    """In order, without those that lie within something allowed."""
    return sorted(
        (
            f
            for f in findings
            if f.rule.action is not Action.ALLOW
            and not any(a.start <= f.start and f.end <= a.end for a in allowed)
        ),
        key=lambda f: f.order,
    )


def redactions(findings: Iterable[Finding]) -> list[Redaction]:
    """What is to be replaced, from left to right; what overlaps is replaced together."""
    found: list[Redaction] = []
    for finding in sorted(findings, key=lambda f: f.order):
        if finding.rule.action is not Action.REDACT:
            continue
        if found and finding.start < found[-1].end:
            last = found[-1]
            found[-1] = Redaction(last.start, max(last.end, finding.end), last.replacement)
        else:
            found.append(Redaction(finding.start, finding.end, finding.rule.replacement))
    return found


def redacted(text: str, parts: Iterable[Redaction]) -> str:
    """The text with every part replaced; parts are in order and apart."""
    pieces, position = [], 0
    for part in parts:
        pieces += [text[position : part.start], part.replacement]
        position = part.end
    return "".join([*pieces, text[position:]])
