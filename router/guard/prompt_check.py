"""What a policy makes of one prompt: refused, changed, noted, or let through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from router.guard.normalization import origins
from router.guard.policy import Action, Rule
from router.guard.prompt_scanner import PromptScanner
from router.guard.prompt_texts import RoleText
from router.guard.verdict import Finding, heeded, redacted, redactions


@dataclass(frozen=True, slots=True)
class PromptVerdict:
    """`texts` are what goes on: redacted where a rule says so. Of no use if it is blocked."""

    rules: tuple[Rule, ...]
    """Those that found something, each once."""
    texts: tuple[str, ...]

    @property
    def blocked(self) -> bool:
        return any(rule.action is Action.BLOCK for rule in self.rules)

    @property
    def redacts(self) -> bool:
        return any(rule.action is Action.REDACT for rule in self.rules)


def check_prompt(scanner: PromptScanner, texts: Sequence[RoleText]) -> PromptVerdict:
    """One verdict for all texts of a prompt; ends at the first that is blocked."""
    rules: dict[str, Rule] = {}
    passed: list[str] = []
    for item in texts:
        found, text = _check(scanner, item)
        rules |= {rule.name: rule for rule in found}
        passed.append(text)
        if any(rule.action is Action.BLOCK for rule in found):
            break
    return PromptVerdict(tuple(rules.values()), tuple(passed))


def _check(scanner: PromptScanner, item: RoleText) -> tuple[list[Rule], str]:
    scan = scanner.scan(item.text)
    if not scan.findings and not scan.disguised:
        return [], item.text
    theirs = [f for f in scan.findings if _concerns(f.rule, item.role)]
    allowed = [f for f in theirs if f.rule.action is Action.ALLOW]
    findings = heeded(theirs, allowed)
    rules = [f.rule for f in findings]
    # Nothing can be replaced in what is only said in disguise.
    rules += [
        rule
        for rule in scan.disguised
        if _concerns(rule, item.role) and rule.action in (Action.FLAG, Action.BLOCK)
    ]
    return rules, _redacted(item.text, findings)


def _concerns(rule: Rule, role: str) -> bool:
    return rule.roles is None or role in rule.roles


def _redacted(text: str, findings: Sequence[Finding]) -> str:
    if all(f.rule.action is not Action.REDACT for f in findings):
        return text
    place = origins(text)
    return redacted(
        text,
        redactions(
            Finding(place[f.start], place[f.end - 1] + 1, f.rule)
            for f in findings
            if f.rule.action is Action.REDACT
        ),
    )
