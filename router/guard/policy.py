"""What a policy says: rules, each with what it looks for and what is done about it."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass

from router.guard.resampling.rules import ResampleRules


class Action(enum.StrEnum):
    """What is done about a text that a rule finds something in.

    allow     what lies within is no concern of any other rule
    flag      counted and logged, without the text
    redact    replaced
    block     a prompt is refused, an answer ends before it
    """

    ALLOW = "allow"
    FLAG = "flag"
    REDACT = "redact"
    BLOCK = "block"


class Stage(enum.StrEnum):
    """Prompts are checked whole, answers as they come."""

    INPUT = "input"
    OUTPUT = "output"


PLAIN_PROMPT = "prompt"
"""In place of a role: the prompt of a request that has no messages."""

REDACTED = "[redacted]"


@dataclass(frozen=True, slots=True)
class AnchoredPattern:
    """A regular expression on normalised text, tried only around some words.

    All strings are normalised. `anchors`: every match has one of them inside; the rarer they are
    in ordinary text, the better. `needed`: and one of each of these groups. Without anchors the
    expression is tried everywhere.
    """

    regex: re.Pattern[str]
    anchors: tuple[str, ...] = ()
    needed: tuple[tuple[str, ...], ...] = ()
    reach: int = 160
    """Characters before and after an anchor within which its match lies."""
    squeezed: re.Pattern[str] | None = None
    """The same for a text without anything between its letters; None: not looked for there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """`name` is the operator's, and a label of metrics."""

    name: str
    action: Action
    terms: tuple[str, ...] = ()
    """Words and phrases; compared in normal form."""
    patterns: tuple[AnchoredPattern, ...] = ()
    """For prompts only: what may still become a match can't be told from an expression."""
    stages: frozenset[Stage] = frozenset(Stage)
    roles: frozenset[str] | None = None
    """Whose messages of a prompt are looked at; None: everybody's."""
    whole_words: bool = True
    """Terms don't match inside words."""
    disguised: bool = False
    """Also looked for in what a prompt holds encoded or spelled in letters apart."""
    replacement: str = REDACTED


@dataclass(frozen=True, slots=True)
class Policy:
    """Rules for a group of tenants. One without rules lets everything pass."""

    name: str
    rules: tuple[Rule, ...]
    resampling: ResampleRules | None = None
    """Whether, and how, tokens of answers are compared with what a prompt of the policy's would
    have made of them."""

    def rules_of(self, stage: Stage) -> tuple[Rule, ...]:
        return tuple(rule for rule in self.rules if stage in rule.stages)

    @property
    def watched_rules(self) -> tuple[Rule, ...]:
        """Where a term of these has begun in an answer, that is suspicious."""
        rules = self.rules_of(Stage.OUTPUT)
        return tuple(rule for rule in rules if rule.terms and rule.action is not Action.ALLOW)


@dataclass(frozen=True, slots=True)
class PolicyBook:
    """The policy of every tenant."""

    policies: Mapping[str, Policy]
    default: str
    tenants: Mapping[str, str]
    """Tenant -> name of its policy, where that isn't the default."""

    def __post_init__(self) -> None:
        names = {self.default, *self.tenants.values()}
        assert names <= self.policies.keys(), "a tenant without a policy"

    def name_for(self, tenant: str) -> str:
        return self.tenants.get(tenant, self.default)
