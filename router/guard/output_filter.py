"""One choice's answer on its way to the client, without what its policy forbids.

    received   ..............gone on...............|withheld      from where a term may have begun
    redact     text and tokens of the term are replaced; a token that it cuts goes with it
    block      the choice ends before the term
    finish     what was withheld goes on: it did not become a term

Ordinary text is withheld only while its end may be the beginning of a term (and less than a token
of it, while that token's last character isn't complete). What goes on depends on the text alone,
not on how it was cut.
"""

from __future__ import annotations

from dataclasses import replace

from core.request import FinishReason
from router.guard.policy import Action, Rule
from router.guard.term_stream import Lexicon, TermStream
from router.guard.verdict import Finding, heeded
from router.guard.withheld_tokens import SpelledToken, WithheldTokens
from router.life.choice import Delta


class OutputFilter:
    """Takes every delta of one choice; pure but for what it remembers."""

    def __init__(self, lexicon: Lexicon) -> None:
        self.rules: list[Rule] = []
        """Rules that found something, once for each time."""
        self.blocked = False
        """The choice is over: nothing more goes on."""
        self._stream = TermStream(lexicon)
        self._tokens = WithheldTokens()
        self._text = ""
        self._gone = 0
        """Characters that have gone on, or were replaced; `_text` begins there."""
        self._unspelled_until = 0
        """Before this place the tokens of the text were dropped with a term."""
        self._found: list[Finding] = []
        self._allowed: list[Finding] = []

    def push(self, delta: Delta) -> list[Delta]:
        """What goes on now: several deltas where something is replaced, none while withheld."""
        if self.blocked:
            return []
        last = delta.finish_reason is not None
        nothing_withheld = not self._text and not self._tokens
        self._text += delta.text
        self._tokens.add(delta)
        self._note(self._stream.push(delta.text))
        if last:
            self._note(self._stream.finish())
        if nothing_withheld and self._all_certain():
            return [delta]
        passed: list[Delta] = []
        for finding in self._certain():
            self._apply(finding, delta, passed)
            if self.blocked:
                return passed
        self._pass_on(delta, last, passed)
        return passed

    def _all_certain(self) -> bool:
        """Whether nothing was found, and nothing may be: then all there is has gone on."""
        received = self._gone + len(self._text)
        complete = self._stream.open == received and self._tokens.lie_before(received)
        if self._found or not complete or self._unspelled_until > self._gone:
            return False
        self._cut(received)
        self._tokens.take(None)
        return True

    def _note(self, findings: list[Finding]) -> None:
        for finding in findings:
            allow = finding.rule.action is Action.ALLOW
            (self._allowed if allow else self._found).append(finding)

    def _certain(self) -> list[Finding]:
        """Findings that nothing can contain, or come before, any more; each once."""
        edge = self._stream.open
        certain = heeded((f for f in self._found if f.start < edge), self._allowed)
        self._found = [f for f in self._found if f.start >= edge]
        self._allowed = [f for f in self._allowed if f.end > edge]
        return certain

    def _apply(self, finding: Finding, delta: Delta, passed: list[Delta]) -> None:
        rule = finding.rule
        self.rules.append(rule)
        if rule.action is Action.BLOCK:
            self.blocked = True
            end = max(self._gone, finding.start)
            reason = FinishReason.CONTENT_FILTER
            passed.append(self._delta(delta, self._cut(end), self._tokens.take(end), reason))
        elif rule.action is Action.REDACT:
            if finding.start >= self._gone:
                self._replace(finding, delta, passed)
            self._cut(max(self._gone, finding.end))
            self._unspelled_until = self._tokens.drop(finding.end)

    def _replace(self, finding: Finding, delta: Delta, passed: list[Delta]) -> None:
        """What lies before the finding, then what stands in its place."""
        whole = max(self._gone, self._tokens.split(finding.start))
        self._send(delta, whole, passed)
        rest = self._cut(finding.start) + finding.rule.replacement
        passed.append(replace(self._delta(delta, rest, [], None), unspelled=True))

    def _pass_on(self, delta: Delta, last: bool, passed: list[Delta]) -> None:
        edge = self._gone + len(self._text) if last else self._tokens.split(self._stream.open)
        self._send(delta, max(edge, self._gone), passed, last=last)

    def _send(self, delta: Delta, end: int, passed: list[Delta], *, last: bool = False) -> None:
        """Text up to `end` with its tokens; apart from that, what dropped tokens had spelled."""
        unspelled = self._cut(max(self._gone, min(end, self._unspelled_until)))
        if unspelled:
            passed.append(replace(self._delta(delta, unspelled, [], None), unspelled=True))
        text = self._cut(end)
        tokens = self._tokens.take(None if last else end)
        reason = delta.finish_reason if last else None
        if text or tokens or reason is not None:
            passed.append(self._delta(delta, text, tokens, reason))

    def _cut(self, end: int) -> str:
        """Takes the text up to this place."""
        size = end - self._gone
        text, self._text = self._text[:size], self._text[size:]
        self._gone = end
        return text

    def _delta(
        self, of: Delta, text: str, tokens: list[SpelledToken], reason: FinishReason | None
    ) -> Delta:
        return replace(
            of,
            text=text,
            token_ids=tuple(token.token_id for token in tokens),
            logprobs=tuple(t.logprobs for t in tokens if t.logprobs is not None),
            finish_reason=reason,
            spans=tuple((token.start, token.end) for token in tokens),
        )
