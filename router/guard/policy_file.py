"""Policies as an operator writes them: TOML, or JSON of the same shape.

default = "standard"              the policy of tenants that aren't named
[tenants]
acme = "strict"
[policies.standard]
builtin = "block"                 what the built-in injection rules do: block, flag, off
[[policies.standard.rules]]
name = "code names"
action = "redact"
terms = ["Project Falcon"]
[policies.standard.resample]        tokens are compared with what this prompt would make of them
prompt = "Never tell code names."
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from core.errors import ConfigError
from router.guard.injection_rules import injection_rules
from router.guard.normalization import normalized
from router.guard.policy import (
    REDACTED,
    Action,
    AnchoredPattern,
    Policy,
    PolicyBook,
    Rule,
    Stage,
)
from router.guard.resampling.rules import OnFailure, ResampleRules

MAX_TERM_CHARACTERS = 256
"""An answer is withheld for as long as it may be the beginning of a term."""
MAX_TERMS = 200_000
MAX_RULES = 256
MAX_PROMPT_CHARACTERS = 16_384

Name = Annotated[str, Field(min_length=1, max_length=64)]
Term = Annotated[str, Field(min_length=1, max_length=MAX_TERM_CHARACTERS)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _RulePart(_Part):
    name: Name
    action: Action
    terms: tuple[Term, ...] = Field(default=(), max_length=MAX_TERMS)
    patterns: tuple[str, ...] = ()
    stages: frozenset[Stage] = Field(default=frozenset(Stage), min_length=1)
    roles: frozenset[str] | None = None
    whole_words: bool = True
    disguised: bool = False
    replacement: str = REDACTED

    @model_validator(mode="after")
    def _finds_something(self) -> _RulePart:
        if not self.terms and not self.patterns:
            raise ValueError("a rule needs terms or patterns")
        if self.patterns and self.stages == {Stage.OUTPUT}:
            raise ValueError("patterns are for prompts only: answers are searched for terms")
        for term in self.terms:
            if not normalized(term).strip():
                raise ValueError(f"the term {term!r} has nothing that is compared")
        return self

    def to_rule(self) -> Rule:
        return Rule(
            name=self.name,
            action=self.action,
            terms=self.terms,
            patterns=tuple(map(_pattern, self.patterns)),
            stages=self.stages,
            roles=self.roles,
            whole_words=self.whole_words,
            disguised=self.disguised,
            replacement=self.replacement,
        )


class _ResamplePart(_Part):
    prompt: Annotated[str, Field(min_length=1, max_length=MAX_PROMPT_CHARACTERS)]
    threshold: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.35
    first_tokens: Annotated[int, Field(ge=0, le=1024)] = 4
    max_checks: Annotated[int, Field(ge=1, le=1024)] = 64
    max_resamples: Annotated[int, Field(ge=1, le=16)] = 2
    temperature_step: Annotated[float, Field(gt=0, le=2)] = 0.5
    timeout_s: Annotated[float, Field(gt=0, le=60)] = 5.0
    on_check_failure: OnFailure = OnFailure.BLOCK

    def to_rules(self, policy: str) -> ResampleRules:
        return ResampleRules(policy=policy, **self.model_dump())


class _PolicyPart(_Part):
    builtin: Literal["block", "flag", "off"] = "block"
    rules: tuple[_RulePart, ...] = Field(default=(), max_length=MAX_RULES)
    resample: _ResamplePart | None = None

    def to_policy(self, name: str) -> Policy:
        builtin = () if self.builtin == "off" else injection_rules(Action(self.builtin))
        rules = (*(part.to_rule() for part in self.rules), *builtin)
        names = [rule.name for rule in rules]
        if len(set(names)) < len(names):
            raise ValueError(f"policy {name!r} has two rules of one name")
        resampling = None if self.resample is None else self.resample.to_rules(name)
        policy = Policy(name, rules, resampling)
        if resampling is not None and not (resampling.first_tokens or policy.watched_rules):
            raise ValueError(f"policy {name!r} resamples, but no token would be suspicious")
        return policy


class _FilePart(_Part):
    default: Name
    tenants: dict[str, Name] = {}
    policies: dict[Name, _PolicyPart]

    @model_validator(mode="after")
    def _policies_exist(self) -> _FilePart:
        for name in (self.default, *self.tenants.values()):
            if name not in self.policies:
                raise ValueError(f"there is no policy {name!r}")
        return self


def builtin_book() -> PolicyBook:
    """Without a file: prompts that follow a template of injection are refused."""
    policy = Policy("builtin", injection_rules(Action.BLOCK))
    return PolicyBook({policy.name: policy}, policy.name, {})


def read_policies(path: Path) -> PolicyBook:
    """The policies of a file. Raises ConfigError that says what is wrong where."""
    try:
        part = _FilePart.model_validate(_parsed(path))
        policies = {name: policy.to_policy(name) for name, policy in part.policies.items()}
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, fault["loc"]))
        raise ConfigError(f"guard.policy_file: {path}: {where}: {fault['msg']}") from None
    except ValueError as error:
        raise ConfigError(f"guard.policy_file: {path}: {error}") from None
    return PolicyBook(policies, part.default, part.tenants)


def _parsed(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"guard.policy_file: cannot read {path}: {error.strerror}") from None
    return json.loads(text) if path.suffix == ".json" else tomllib.loads(text)


def _pattern(text: str) -> AnchoredPattern:
    """Of a regular expression that is meant for the normal form. Raises ValueError."""
    try:
        return AnchoredPattern(regex=re.compile(text, re.IGNORECASE))
    except re.error as error:
        raise ValueError(f"the pattern {text!r} is no regular expression: {error}") from None
